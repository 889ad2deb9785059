# Does what the cases say with the client for Ruby. Each line of its input is a step, and each line of its output what
# came of it.
require "json"
require "wirefence"

ActiveRecord::Base.establish_connection("#{ENV.fetch("API")}&connect_timeout=10&pool=20")

class Fails < StandardError; end

class Driver
  def initialize = @grants = 0

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # Tries until the wait is over.
  def try(step)
    until_ = now + step.fetch("wait", 0)
    begin
      @began = now
      yield step["resource"], "#{ENV["NAME"]}/#{@grants += 1}", step.fetch("ttl", 15)
    rescue Wirefence::LeaseHeld, ActiveRecord::ActiveRecordError
      raise if now >= until_
      begin
        ActiveRecord::Base.connection_pool.disconnect! # of what was cut
      rescue ActiveRecord::ActiveRecordError # another thread has one
      end
      sleep [until_ - now, 0.2].min
      retry
    end
  end

  def acquire(step)
    @lease = try(step) { |resource, holder, ttl| Wirefence::Lease.new(resource, holder, ttl) }
    { granted: true, token: @lease.token.to_s, fence: @lease.fence, comment: comment, remaining: @lease.remaining }.tap { @lease.check! }
  rescue Wirefence::LeaseLost
    @lease.release
    raise
  end

  def comment = "/*wirefence.token='#{@lease.fence}'*/"

  def check(_)
    @lease.check!
    { held: true }
  rescue Wirefence::LeaseLost => e
    { held: false, cause: e.reason }
  end

  def await_end(step)
    sleep 0.01 while @lease.remaining > 0 && now < @began + step["within"]
    { at: now - @began, **check(step) }
  end

  def remaining(_) = { remaining: @lease.remaining }

  def release(_)
    @lease.release
    { released: true }
  end

  def keep(step)
    @lease.release(keep_for: step["keep_for"])
    { given_up: true }
  end

  def run(step)
    try(step) do |resource, holder, ttl|
      Wirefence.lease(resource, holder: holder, ttl: ttl, keep_for: step["keep_for"]) do
        sleep step.fetch("works", 0)
        raise Fails if step["fails"]
      end
    end
    { ran: true }
  rescue Fails
    { ran: true }
  end

  def write(step)
    fence, via = @lease.fence, step.fetch("via", "comment")
    db = PG.connect(ENV.fetch("DATABASE_URL"), **(via == "options" ? { options: "-c wirefence.token=#{fence}" } : {}))
    db.exec("BEGIN")
    db.exec("SET LOCAL wirefence.token = '#{fence}'") if via == "set_local"
    db.exec("INSERT INTO orders (item) VALUES ('book')#{comment if via == "comment"}")
    db.exec("COMMIT")
    { written: true }
  rescue PG::Error => e
    state = e.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
    { error: state == "WF001" ? "StaleToken" : state, sqlstate: state, condition: "stale_fencing_token" }
  ensure
    db&.close
  end
end

def failure(error)
  case error
  when Wirefence::LeaseHeld then { error: "held", held_by: error.message[/ is held by (.*)/, 1] }
  when Wirefence::LeaseLost then { error: "lost", cause: error.reason }
  when ArgumentError then { error: "invalid" }
  when ActiveRecord::StatementInvalid, ActiveRecord::ConnectionNotEstablished
    { error: error.cause.respond_to?(:result) && error.cause.result&.error_field(PG::Result::PG_DIAG_SQLSTATE) == "22023" ? "invalid" : "unavailable" }
  else raise error
  end
end

$stdout.sync = true
driver = Driver.new
$stdin.each_line do |line|
  step = JSON.parse(line)
  began = driver.now
  outcome =
    begin
      driver.public_send(step["do"], step)
    rescue StandardError => e
      warn "#{step["do"]}: #{e.full_message}"
      failure(e)
    end
  puts JSON.generate(outcome.merge(took: driver.now - began))
end
