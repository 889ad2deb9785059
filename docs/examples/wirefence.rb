# Leases and fences for ActiveRecord; docs/howto-rails.md shows their use.

require "active_record"
require "erb"
require "json"
require "net/http"
require "securerandom"
require "socket"

module Wirefence
  class LeaseHeld < StandardError; end
  class LeaseLost < StandardError; end
  class Refused < StandardError; end

  API = URI(ENV.fetch("LEASES_URL", "http://127.0.0.1:9433"))
  CLOCK = defined?(Process::CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC

  # A lease ends here a fifth of its time before another can have it, counted from before
  # the last request that was granted.
  class Lease
    attr_reader :fence

    def initialize(resource, holder, ttl)
      @resource, @ttl = resource, ttl
      request("acquire", holder: holder, ttl_seconds: ttl, idempotency_key: SecureRandom.uuid) do |answer|
        @grant_id, @fence = answer.values_at("grant_id", "fence")
      end
    end

    def check!
      raise LeaseLost, "the lease of #{@resource} has ended" if now >= @ends
    end

    def keep
      loop do
        sleep @ttl / 3.0
        request("renew", grant_id: @grant_id, ttl_seconds: @ttl)
      rescue LeaseLost
        return @ends = 0
      rescue StandardError => e
        warn "renewal: #{e.message}" # the next may succeed; without one the lease ends by the clock
      end
    end

    def release
      request("release", grant_id: @grant_id)
    rescue StandardError => e
      warn "release: #{e.message}" # it ends by itself
    end

    private

    def now = Process.clock_gettime(CLOCK)

    def request(action, **body)
      began = now
      url = URI.join(API, "/v1/resources/#{ERB::Util.url_encode(@resource)}/#{action}")
      answer = Net::HTTP.post(url, body.to_json, "Content-Type" => "application/json")
      case answer
      when Net::HTTPSuccess
        yield JSON.parse(answer.body) if block_given?
        @ends = began + @ttl * 0.8
      when Net::HTTPConflict
        raise (action == "acquire" ? LeaseHeld : LeaseLost), JSON.parse(answer.body)["detail"]
      else
        raise "#{action} of #{@resource}: #{answer.code} #{answer.body}"
      end
    end
  end

  module_function

  def lease(resource, holder: "#{Socket.gethostname}:#{Process.pid}", ttl: 15)
    lease = Lease.new(resource, holder, ttl)
    keeper = Thread.new { lease.keep }
    begin
      yield lease
    ensure
      keeper.kill.join
      lease.release
    end
  end

  # transaction runs a transaction whose statements are all fenced.
  def transaction(lease)
    db = ActiveRecord::Base.connection
    raise "the fence belongs to the outermost transaction" if db.transaction_open?
    lease.check!
    db.transaction do
      db.execute("SELECT set_config('wirefence.token', #{db.quote(lease.fence)}, true)")
      yield
    end
  rescue ActiveRecord::StatementInvalid => e
    result = e.cause.respond_to?(:result) && e.cause.result
    state = result && result.error_field(PG::Result::PG_DIAG_SQLSTATE)
    raise unless state.to_s.start_with?("WF")
    raise Refused, "#{state} #{result.error_field(PG::Result::PG_DIAG_MESSAGE_PRIMARY)}"
  end
end
