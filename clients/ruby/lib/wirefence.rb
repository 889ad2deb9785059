# Leases with fencing tokens for ActiveRecord on PostgreSQL; docs/howto/rails.md shows their use.

require "active_record"
require "active_record/connection_adapters/postgresql_adapter"
require "socket"

module Wirefence
  # Another holder has the lease.
  class LeaseHeld < StandardError; end

  # The lease has ended, and never comes back.
  class LeaseLost < StandardError; end

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

    attr_reader :fence

    def initialize(resource, holder, ttl)
      # Its transactions would not be fenced, or the grant not be seen before their end.
      if [ActiveRecord::Base, Wirefence.leases].any? { |model| model.connection_pool.active_connection?&.transaction_open? }
        raise "take the lease of #{resource} outside a transaction"
      end
      @resource, @ttl, @lock, @changed, @process = resource, ttl, Mutex.new, ConditionVariable.new, Process.pid
      began = now
      grant = query("SELECT grant_id, token, held_by FROM wirefence.acquire($1, $2, make_interval(secs => $3))", resource, holder, ttl.to_f)
      raise LeaseHeld, "#{resource} is held by #{grant["held_by"] || "another"}" unless grant["token"]
      @grant_id = grant["grant_id"]
      @fence = "#{resource.b.gsub(%r{[^A-Za-z0-9_.:/-]}n) { |byte| format("%%%02X", byte.ord) }}=#{grant["token"]}"
      confirm(began)
      @granted = now
      @keeper = Thread.new { keep }
    end

    # Without the grant's id.
    def inspect = "#<#{self.class} #{@fence}>"

    # Raises LeaseLost if the lease has ended. Call it between the parts of long work.
    def check!
      raise LeaseLost, "the lease of #{@resource} has ended: #{@lost || "it was not renewed in time"}" if ended?
    end

    # Gives the lease back, or leaves it taken until so many seconds after its grant, once. If that fails, or has no answer
    # a second behind the lease's end, it expires by itself. A forked process leaves the lease to its parent.
    def release(keep_for: 0)
      return if @process != Process.pid
      left = @lock.synchronize do
        return if @over
        @over = true
        @changed.wait(@lock, @ends - now) while @asking && keep_for.to_f > 0 && !ended? # that would shorten the time
        ended? ? 0 : @granted + keep_for.to_f - now
      ensure
        @lost ||= "it was given back"
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

    def ended? = !@lost.nil? || now >= @ends

    def keep
      loop do
        @lock.synchronize do
          @changed.wait(@lock, @renew_at - now) while !ended? && now < @renew_at
          return if ended? # one that has ended doesn't come back
          @asking = true
        end
        renew
      end
    end

    # A try takes half of the time that is left, so that another fits in.
    def renew
      began, held = now, nil
      held = ask((@ends - began) / 2, "SELECT wirefence.renew($1, $2, make_interval(secs => $3))::text AS held", @resource, @grant_id, @ttl.to_f)["held"]
    rescue StandardError => e # the next may succeed; without one the lease ends by the clock
      warn "cannot renew lease of #{@resource}: #{e.message}"
    ensure
      @lock.synchronize do
        @asking = false
        @changed.broadcast
        if held.nil?
          @renew_at = now + @ttl / 20.0
        elsif held == "false"
          @lost ||= "another holder has it, or it was revoked"
        elsif !ended?
          confirm(began)
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
      asking = Thread.new { query(sql, *binds) }
      asking.report_on_exception = false
      raise "no answer within #{seconds.round(3)} s" unless asking.join(seconds)
      asking.value
    end

    # Not by select_one, which Rails answers from its cache of queries. The grant's id is a secret: it is no part of the
    # statement's text, and Rails doesn't log what is named SCHEMA.
    def query(sql, *binds)
      Wirefence.leases.connection_pool.with_connection { |db| db.exec_query(sql, "SCHEMA", binds).first }
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
