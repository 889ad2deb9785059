# clients/conformance runs these on a real server: DATABASE_URL is of an application's role, which may write
# the guarded tables totals and reports; LEASES_URL of a role with wirefence_issuer.

require "minitest/autorun"
require "timeout"
require "wirefence"

ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))

class Leases < ActiveRecord::Base
  self.abstract_class = true
  establish_connection(ENV.fetch("LEASES_URL"))
end

Wirefence.leases = Leases

class Total < ActiveRecord::Base; end

class Report < ActiveRecord::Base; end

class WirefenceTest < Minitest::Test
  NIGHTLY = "nightly ä%'" # guards totals; reports guards reports

  def setup = revoke

  def test_a_lease_is_exclusive_and_renewed
    Wirefence.lease(NIGHTLY, holder: "first", ttl: 6) do |lease|
      first = Leases.connection.select_value("SELECT max(expires_at) FROM wirefence.leases")
      error = assert_raises(Wirefence::LeaseHeld) { Wirefence.lease(NIGHTLY) { flunk } }
      assert_includes error.message, "first"
      eventually { Leases.connection.select_value(Leases.sanitize_sql_array(["SELECT max(expires_at) > ?::timestamptz + interval '3 seconds' FROM wirefence.leases", first])) }
      lease.check!
      Total.create!(host: "late")
    end
    Wirefence.lease(NIGHTLY) { |lease| assert_match(/\Anightly%20%C3%A4%25%27=\d+\z/, lease.fence) }
  end

  def test_the_id_of_a_grant_is_a_secret
    ActiveRecord::Base.logger = Logger.new(log = StringIO.new)
    Wirefence.lease(NIGHTLY, ttl: 3) do |lease|
      renewals = "SELECT query FROM pg_stat_activity WHERE query LIKE '%wirefence.renew%' AND pid <> pg_backend_pid()"
      eventually { Leases.connection.select_values(renewals).any? }
      id = lease.instance_variable_get(:@grant_id)
      shown = [log.string, lease.inspect, *Leases.connection.select_values(renewals)]
      assert_match(/pg_stat_activity/, log.string)
      refute shown.any? { |text| text.include?(id) }, shown.join("\n")
    end
  ensure
    ActiveRecord::Base.logger = nil
  end

  def test_transactions_are_fenced
    Wirefence.lease(NIGHTLY) do
      Total.create!(host: "one")
      Total.transaction do
        Total.create!(host: "two")
        assert_raises(ActiveRecord::RecordNotUnique) { Total.transaction(requires_new: true) { Total.create!(id: Total.minimum(:id)) } }
        Total.update_all(host: "three")
      end
      Total.transaction(isolation: :serializable) { Total.create!(host: Total.count.to_s) }
      Total.transaction { Total.create!; raise ActiveRecord::Rollback }
      Total.create!(host: "four")
    end
    assert_refused("WF002") { Total.create!(host: "without") }
  end

  # Of the table of ways past a hook: `update_all`, `insert_all`, `delete_all`, `update_columns` and `execute` outside a
  # transaction; `raw_connection` there.
  def test_ways_past_the_hook_are_refused
    Wirefence.lease(NIGHTLY) do
      total = Total.create!(host: "one")
      assert_refused("WF002") { Total.update_all(host: "two") }
      assert_refused("WF002") { Total.insert_all([{ host: "two" }]) }
      assert_refused("WF002") { Total.where(host: "two").delete_all }
      assert_refused("WF002") { total.update_columns(host: "two") }
      assert_refused("WF002") { Total.connection.execute("INSERT INTO totals DEFAULT VALUES") }
      error = assert_raises(PG::Error) { Total.connection.raw_connection.exec("INSERT INTO totals DEFAULT VALUES") }
      assert_equal "WF002", error.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
    end
  end

  def test_other_threads_have_no_fence
    Wirefence.lease(NIGHTLY) { assert_refused("WF002") { Thread.new { Total.create! }.tap { |thread| thread.report_on_exception = false }.value } }
  end

  def test_leases_nest
    Wirefence.lease(NIGHTLY) do
      Wirefence.lease("reports") { Total.transaction { Total.create!; Report.create! } }
      Total.create!
      assert_refused("WF002") { Report.create! }
    end
  end

  def test_a_former_holder_is_refused
    error = assert_raises(Wirefence::Refused) do
      Wirefence.lease(NIGHTLY) do
        Total.create!(host: "before")
        revoke
        Total.create!(host: "stale")
      end
    end
    assert_equal "WF001 stale fencing token for resource \"#{NIGHTLY}\"", error.message
    assert_empty Total.where(host: "stale")
  end

  def test_a_revoked_lease_ends
    error = assert_raises(Wirefence::LeaseLost) do
      Wirefence.lease(NIGHTLY, ttl: 9) do |lease|
        revoke
        await_end(lease) # the end of the block tells it, too
      end
    end
    assert_equal "revoked", error.reason
  end

  def test_without_renewals_it_ends_in_time_for_ever
    began, tries, works = Process.clock_gettime(Process::CLOCK_MONOTONIC), 0, false
    pool = Leases.connection_pool
    pool.define_singleton_method(:with_connection) do |**options, &block|
      next super(**options, &block) if works || Thread.current == Thread.main
      tries += 1
      raise ActiveRecord::ConnectionNotEstablished, "no way"
    end
    assert_raises(Wirefence::LeaseLost) do
      Wirefence.lease(NIGHTLY, ttl: 10) do |lease|
        capture_io { await_end(lease) } # its warnings
        assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, :<, 10
        assert_operator tries, :>, 1
        assert_raises(Wirefence::LeaseLost) { Total.create!(host: "too late") }
        refute Total.connection.transaction_open?
        works = true
        assert_includes await_end(lease), "unreachable"
      end
    end
    assert_empty Total.where(host: "too late")
  ensure
    pool.singleton_class.remove_method(:with_connection)
  end

  def test_a_block_that_ends_well_keeps_the_lease
    began = now
    assert_equal 1, Wirefence.lease(NIGHTLY, ttl: 15, keep_for: 3) { |lease| 1 }
    assert_raises(Wirefence::LeaseHeld) { Wirefence.lease(NIGHTLY) { flunk } }
    eventually { Wirefence.lease(NIGHTLY) { true } rescue false }
    assert_includes 3..15, now - began
    Wirefence.lease(NIGHTLY, ttl: 3, keep_for: 60) { break } # far beyond its ttl
    sleep 3.1
    assert_raises(Wirefence::LeaseHeld) { Wirefence.lease(NIGHTLY) { flunk } }
  end

  def test_a_failed_block_keeps_nothing
    assert_raises(RuntimeError) { Wirefence.lease(NIGHTLY, keep_for: 60) { raise "mine" } }
    Wirefence.lease(NIGHTLY, keep_for: 0.1) { sleep 0.2 } # the time is over
    assert_raises(Wirefence::LeaseLost) do
      Wirefence.lease(NIGHTLY, ttl: 9, keep_for: 60) do |lease|
        revoke
        await_end(lease)
      end
    end
    assert_raises(ArgumentError) { Wirefence.lease(NIGHTLY, keep_for: -1) { flunk } }
    Wirefence.lease(NIGHTLY) { |lease| lease.check! }
  end

  def test_the_end_of_a_block_waits_for_nothing_that_hangs
    stuck, began = PG.connect(ENV.fetch("LEASES_URL")), now
    capture_io do
      Wirefence.lease(NIGHTLY, ttl: 5) do
        stuck.exec("BEGIN")
        stuck.exec_params("SELECT wirefence.revoke($1)", [NIGHTLY])
        eventually { waiting.positive? } # a renewal
      end
    end
    assert_operator now - began, :<, 6.5
  ensure
    stuck.close
  end

  def test_a_slow_acquire_is_renewed_in_time
    writer = PG.connect(ENV.fetch("DATABASE_URL").delete_suffix("&prepared_statements=false")) # which is Rails'
    Wirefence.lease(NIGHTLY) { |lease| writer.exec("BEGIN; SET LOCAL wirefence.token = '#{lease.fence}'; INSERT INTO totals DEFAULT VALUES") }
    began = now
    Wirefence.lease(NIGHTLY, ttl: 9) do |lease| # preempt_after ends the writer
      assert_operator now - began, :>, 4
      eventually { now - began > 8 }
      lease.check!
    end
  ensure
    writer.close
  end

  def test_a_forked_child_leaves_the_lease_to_its_parent
    child = nil
    Wirefence.lease(NIGHTLY) do |lease|
      next unless child = fork
      Process.wait(child)
      assert_raises(Wirefence::LeaseHeld) { Wirefence.lease(NIGHTLY) { flunk } }
    end
    exit! unless child
  end

  # Rails restarts the outer transaction from 7.1 on.
  def test_a_restarted_transaction_is_fenced
    stale = lambda do
      Total.transaction do
        Total.transaction(requires_new: true) { Total.create!(host: "undone"); raise ActiveRecord::Rollback }
        Total.create!(host: "restarted")
      end
    end
    error = assert_raises(Wirefence::Refused) do
      Wirefence.lease(NIGHTLY) do
        stale.call
        revoke
        stale.call
      end
    end
    assert_includes error.message, "WF001"
    assert_equal 1, Total.where(host: "restarted").count
  end

  def test_nothing_is_taken_in_a_transaction
    Total.transaction { assert_raises(RuntimeError) { Wirefence.lease(NIGHTLY) { flunk } } }
  end

  private

  def revoke = Leases.connection.execute(Leases.sanitize_sql_array(["SELECT wirefence.revoke(?), wirefence.revoke('reports')", NIGHTLY]))

  def assert_refused(state, &block)
    error = assert_raises(ActiveRecord::StatementInvalid, &block)
    assert_equal state, error.cause.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
  end

  def waiting = Leases.connection.select_value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%wirefence.renew%'")

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # Returns what the lease says at its end.
  def await_end(lease)
    eventually { lease.check!; false }
  rescue Wirefence::LeaseLost => e
    e.message
  end

  def eventually
    Timeout.timeout(60) { sleep 0.02 until yield }
  end
end
