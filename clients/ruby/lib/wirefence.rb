# Leases with fencing tokens for ActiveRecord on PostgreSQL; docs/howto/rails.md shows their use.

require "active_record"
require "active_record/connection_adapters/postgresql_adapter"
require "monitor"
require "socket"

module Wirefence
  # Another holder has the lease.
  class LeaseHeld < StandardError; end

  # The lease has ended, and never comes back.
  class LeaseLost < StandardError
    # "expired" (the process was stopped), "unreachable" (renewals failed), "lost", "revoked", "failover" or "released".
    attr_reader :reason

    def initialize(message, reason)
      super(message)
      @reason = reason
    end
  end

  # PostgreSQL refused a statement for its fence; the cause is ActiveRecord's error. A retry never succeeds.
  class Refused < StandardError; end

  MAX_KEEP = 366 * 86_400 # seconds, the longest ttl

  class << self
    # The class whose connections take the leases, in a role with wirefence_issuer; default ActiveRecord::Base.
    attr_writer :leases

    def leases = @leases || ActiveRecord::Base

    # Runs the block under the lease of a resource, which is renewed meanwhile. All transactions that this thread
    # begins in the block carry its fence. +ttl+ is in seconds: for so long it lasts if this process dies. If the block
    # raises nothing, the lease stays taken until +keep_for+ seconds after its grant.
    #
    # Raises LeaseHeld, runs nothing and doesn't wait if another holder has the lease; Refused where PostgreSQL
    # refused a statement of the block, and LeaseLost where the lease had ended.
    def lease(resource, holder: "#{Socket.gethostname}:#{Process.pid}", ttl: 15, keep_for: 0)
      raise ArgumentError, "keep_for is #{keep_for}, must be 0 to #{MAX_KEEP} seconds" unless keep_for.to_f.between?(0, MAX_KEEP)
      lease = Lease.new(resource, holder, ttl)
      held.push(lease)
      begin
        lease.check! # its grant may have come too late
        result = yield lease
        lease.check!
        result
      rescue Exception
        keep_for = 0
        raise
      ensure
        held.delete(lease)
        lease.release(keep_for: keep_for)
      end
    rescue ActiveRecord::StatementInvalid => e
      result = e.cause.respond_to?(:result) && e.cause.result
      state = result && result.error_field(PG::Result::PG_DIAG_SQLSTATE)
      raise unless state.to_s.start_with?("WF")
      raise Refused, "#{state} #{result.error_field(PG::Result::PG_DIAG_MESSAGE_PRIMARY)}"
    end

    # The fence of all leases of this thread; nil without one. Raises LeaseLost if one has ended.
    def fence = held.each(&:check!).map(&:fence).join(",").presence

    private

    def held
      Thread.current.thread_variable_get(:wirefence) || Thread.current.thread_variable_set(:wirefence, [])
    end
  end

  class Lease
    CLOCK = defined?(Process::CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC

    # Returns why the lease is lost, null if it isn't.
    RENEW = <<~SQL
      SELECT CASE WHEN l.former OR coalesce(l.last_token, 0) < t.token THEN 'failover'
          WHEN l.last_token > t.token AND l.holder IS NULL THEN 'revoked'
          WHEN l.last_token > t.token OR NOT wirefence.renew(t.resource, $1, make_interval(secs => $2)) THEN 'lost' END AS lost
      FROM (SELECT $3::text, $4::bigint) AS t (resource, token)
      LEFT JOIN (SELECT *, NOT pg_is_in_recovery() AND pinned_to <> wirefence.identity() AS former FROM wirefence.resource_locks) AS l
           ON l.resource_id = t.resource
    SQL

    attr_reader :fence, :token

    def initialize(resource, holder, ttl)
      # Its transactions would not be fenced, or the grant not be seen before their end.
      if [ActiveRecord::Base, Wirefence.leases].any? { |model| model.connection_pool.active_connection?&.transaction_open? }
        raise "take the lease of #{resource} outside a transaction"
      end
      @resource, @ttl, @lock, @process = resource, ttl, Monitor.new, Process.pid
      @changed = @lock.new_cond
      @pool = Wirefence.leases.connection_pool # in another thread the model may be connected to another shard
      began = now
      grant = query("SELECT grant_id, token, held_by FROM wirefence.acquire($1, $2, make_interval(secs => $3))", resource, holder, ttl.to_f)
      raise LeaseHeld, "#{resource} is held by #{grant["held_by"] || "another"}" unless grant["token"]
      @grant_id, @token = grant["grant_id"], grant["token"]
      @fence = "#{resource.b.gsub(%r{[^A-Za-z0-9_.:/-]}n) { |byte| format("%%%02X", byte.ord) }}=#{@token}"
      confirm(began)
      @granted = now
      @keeper = Thread.new { renew_until_end }
    end

    # Without the grant's id.
    def inspect = "#<#{self.class} #{@fence}>"

    # Raises LeaseLost if the lease has ended. Call it between the parts of long work.
    def check!
      raise LeaseLost.new("the lease of #{@resource} has ended: #{@lost}", @lost) if ended?
    end

    # Seconds until the lease ends if it isn't renewed; 0 if it has ended.
    def remaining = ended? ? 0 : @ends - now

    # Gives the lease back, or leaves it taken until so many seconds after its grant, once. If that fails, or has no answer
    # a second behind the lease's end, it expires by itself. A forked process leaves the lease to its parent.
    def release(keep_for: 0)
      return if @process != Process.pid
      left = @lock.synchronize do
        return if @over
        @over = true
        @changed.wait([@ends - now, 0].max) while @asking && keep_for.to_f > 0 && !ended? # that would shorten the time
        ended? ? 0 : @granted + keep_for.to_f - now
      ensure
        @lost ||= "released"
        @changed.broadcast
      end
      patience = [@ends - now, 1].max
      if left > 0
        ask(patience, "SELECT wirefence.renew($1, $2, make_interval(secs => $3))", @resource, @grant_id, left)
      else
        ask(patience, "SELECT wirefence.release($1, $2)", @resource, @grant_id)
      end
    rescue StandardError => e
      warn "cannot release lease of #{@resource}: #{e.message}"
    end

    private

    def ended?
      @lock.synchronize do
        @lost ||= @failed ? "unreachable" : "expired" if now >= @ends
        !@lost.nil?
      end
    end

    def renew_until_end
      loop do
        @lock.synchronize do
          @changed.wait([@renew_at - now, 0].max) while !ended? && now < @renew_at
          return if ended? # one that has ended doesn't come back
          @asking = true
        end
        renew
      end
    end

    # A try takes half of the time that is left, so that another fits in.
    def renew
      began, failed, @failed = now, true, true
      lost = ask((@ends - began) / 2, RENEW, @grant_id, @ttl.to_f, @resource, @token)["lost"]
      failed = false
    rescue StandardError => e # the next may succeed; without one the lease ends by the clock
      warn "cannot renew lease of #{@resource}: #{e.message}"
    ensure
      @lock.synchronize do
        @asking = false
        @changed.broadcast
        unless ended?
          @lost, @failed = lost, failed
          failed ? @renew_at = now + @ttl / 20.0 : confirm(began)
        end
      end
    end

    # It ends here a fifth of its time before another can have it, counted from before the request.
    def confirm(began)
      @ends, @renew_at = began + @ttl * 0.8, began + @ttl / 3.0
    end

    def now = Process.clock_gettime(CLOCK)

    # Asks in a thread, which is left to itself if no answer comes.
    def ask(seconds, sql, *binds)
      given_up = false
      question = Thread.new { query(sql, *binds) { raise "the answer is not awaited any more" if given_up } }
      question.report_on_exception = false
      unless question.join(seconds)
        given_up = true # where the pool had no connection for so long
        raise "no answer within #{seconds.round(3)} s"
      end
      question.value
    end

    # Not by select_one, which Rails answers from its cache of queries. The grant's id is a secret: it is no part of the
    # statement's text, and Rails doesn't log what is named SCHEMA.
    def query(sql, *binds)
      @pool.with_connection do |db|
        yield if block_given?
        db.exec_query(sql, "SCHEMA", binds).first
      end
    end
  end

  # Fences transactions: for the transaction alone, so that nothing stays on a pooled connection. SET takes no
  # snapshot, and may stand before SET TRANSACTION.
  module Transactions
    # The last is Rails' ROLLBACK AND CHAIN, from 7.1 on.
    %i[begin_db_transaction begin_isolated_db_transaction exec_restart_db_transaction].each do |begins|
      define_method(begins) do |*args|
        fence = Wirefence.fence
        super(*args)
        execute("SET LOCAL wirefence.token = #{quote(fence)}", "TRANSACTION") if fence
      end
    end
  end

  ActiveRecord::ConnectionAdapters::PostgreSQLAdapter.prepend(Transactions)
end
