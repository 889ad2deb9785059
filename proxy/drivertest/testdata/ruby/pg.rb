# What Ruby pg's users do. A line of input starts a run, its lines and a dot end
# it. way_test.go says what the lines mean.
require "pg"

SLEEPS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"

Run = Struct.new(:port, :direct, :database, :security, :options, :set, :comment) do
  def params(port, options)
    params = { host: ENV["PGHOST"], port: port, dbname: database, user: ENV["PGUSER"], password: ENV["PGPASSWORD"], options: options }
    return params.merge(sslmode: "disable") if security == "plain"
    params.merge!(sslmode: "verify-full", sslrootcert: ENV["ROOT_CERT"])
    security == "binding" ? params.merge(channel_binding: "require") : params
  end

  def fenced = PG.connect(params(port, options))
  def unfenced = PG.connect(params(direct, ""))
end

class Program
  def initialize(run)
    @comment, @set = run.comment, run.set
    @conn, @other = run.fenced, run.unfenced
    @conn.set_notice_processor { nil }
    @conn.exec(@set)
    scenario
    [@conn, @other].each(&:close)
  end

  def report(kind, name)
    begin
      result = yield
    rescue PG::Error => e
      result = "error " + describe(e)
    end
    puts "#{kind} #{name}: #{result}"
    $stdout.flush
  end

  def describe(error)
    return error.message.tr("\n", " ") unless error.result
    position = error.result.error_field(PG::PG_DIAG_STATEMENT_POSITION)
    error.result.error_field(PG::PG_DIAG_SQLSTATE) + (position ? " at #{position}" : "")
  end

  def rows(sql, *values)
    result = values.empty? ? @conn.exec(sql + @comment) : @conn.exec_params(sql + @comment, values)
    result.nfields.zero? ? result.cmd_tuples : result.values.inspect
  end

  def transaction
    @conn.transaction do
      rows("INSERT INTO t VALUES ($1, 'tx')", 10)
      @conn.exec("SAVEPOINT s")
      rows("DELETE FROM t")
      @conn.exec("ROLLBACK TO SAVEPOINT s")
      rows("UPDATE t SET v = $1 WHERE id = 10 RETURNING v", "Ü")
    end
  end

  def prepared
    @conn.prepare("p", "INSERT INTO t VALUES ($1, $2) RETURNING id" + @comment)
    (0..7).map { |i| @conn.exec_prepared("p", [20 + i, "p"]).getvalue(0, 0) }.join(",")
  ensure
    @conn.exec("DEALLOCATE ALL")
  end

  def pipeline
    @conn.enter_pipeline_mode
    30.times { |i| @conn.send_query_params("INSERT INTO t VALUES ($1, 'pipe')" + @comment, [100 + i]) }
    @conn.pipeline_sync
    @conn.send_query_params("SELECT $1::int" + @comment, [7])
    @conn.pipeline_sync
    results
  ensure
    @conn.exit_pipeline_mode
  end

  def failing_pipeline
    @conn.enter_pipeline_mode
    ["INSERT INTO t VALUES (200, 'pipe')", "SELECT 1 / $1::int", "INSERT INTO t VALUES (201, 'pipe')"].each do |sql|
      @conn.send_query_params(sql + @comment, sql.include?("$1") ? [0] : [])
    end
    @conn.pipeline_sync
    @conn.send_query_params("SELECT $1::int" + @comment, [8])
    @conn.pipeline_sync
    results
  ensure
    @conn.exit_pipeline_mode
  end

  # results takes what comes until two syncs are answered, and raises the first
  # error then.
  def results
    texts, first, syncs = [], nil, 0
    while syncs < 2
      result = @conn.get_result or next
      case result.result_status
      when PG::PGRES_PIPELINE_SYNC then syncs += 1
      when PG::PGRES_FATAL_ERROR then first ||= result
      else texts << (result.ntuples.positive? ? result.getvalue(0, 0) : result.cmd_status)
      end
    end
    first&.check
    texts.tally.inspect
  end

  def copy_in(*lines)
    @conn.copy_data("COPY t FROM STDIN" + @comment) { lines.each { |line| @conn.put_copy_data(line) } }
    "done"
  end

  def encoded_copy
    @conn.copy_data("COPY t FROM STDIN" + @comment, PG::TextEncoder::CopyRow.new) do
      50.times { |i| @conn.put_copy_data([3000 + i, "a\ttab"]) }
    end
    "done"
  end

  def copy_out
    n = 0
    @conn.copy_data("COPY (SELECT generate_series(1, 3000)) TO STDOUT" + @comment) { n += 1 while @conn.get_copy_data }
    n
  end

  def large_object
    @conn.transaction do
      # lo_creat reports no error but that it failed.
      oid = @conn.exec("SELECT lo_creat(-1)" + @comment).getvalue(0, 0).to_i
      fd = @conn.lo_open(oid, PG::INV_READ | PG::INV_WRITE)
      @conn.lo_write(fd, "hello")
      @conn.lo_lseek(fd, 0, PG::SEEK_SET)
      text = @conn.lo_read(fd, 5)
      @conn.lo_unlink(oid)
      text
    end
  end

  def single_rows
    @conn.send_query("SELECT generate_series(1, 100)" + @comment)
    @conn.set_single_row_mode
    @conn.get_result.stream_each.sum { |row| row["generate_series"].to_i }
  ensure
    @conn.discard_results
  end

  def cursor
    @conn.transaction do
      @conn.exec("DECLARE c CURSOR FOR SELECT generate_series(1, 100)")
      [rows("FETCH 3 FROM c"), rows("FETCH 2 FROM c")].join
    end
  end

  def cancel
    ended = false # at once, if it is stale
    canceller = Thread.new do
      sleep 0 until ended || (asleep = @other.exec(SLEEPS).getvalue(0, 0) != "0")
      @conn.cancel if asleep
    end
    rows("SELECT pg_sleep(60)")
  ensure
    ended = true
    canceller.join
  end

  def notified
    @conn.exec("LISTEN news")
    @other.exec("NOTIFY news, 'hello'")
    heard = nil
    @conn.wait_for_notify(30) { |channel, _, payload| heard = "#{channel} #{payload}" }
    heard
  end

  def level(sql, level)
    @conn.transaction do
      @conn.exec("SET TRANSACTION #{level}")
      rows(sql)
    end
  end

  def reset
    @conn.exec("DISCARD ALL")
    @conn.exec(@set)
    rows("INSERT INTO t VALUES ($1, 'behind the reset')", 60)
  end

  def scenario
    report("R", "select") { rows("SELECT 1 + $1::int, $2::text", 1, "ü") }
    report("W", "insert") { rows("INSERT INTO t VALUES ($1, $2)", 1, "a") }
    report("W", "simple insert") { rows("INSERT INTO t VALUES (2, 'b')") }
    report("W", "returning") { rows("INSERT INTO t VALUES (3, $1) RETURNING id, v", "c") }
    report("W", "function") { rows("SELECT write_one($1)", 4) }
    report("W", "several") { rows("INSERT INTO t VALUES (5, 'd'); INSERT INTO t VALUES (6, 'e')") }
    report("W", "transaction") { transaction }
    report("W", "prepared") { prepared }
    report("W", "pipeline") { pipeline }
    report("E", "failing pipeline") { failing_pipeline }
    report("W", "copy in") { copy_in(*(1000..1999).map { |i| "#{i}\tcopied\n" }) }
    report("W", "encoded copy in") { encoded_copy }
    report("E", "copy fails") { copy_in("no number\tx\n") }
    report("R", "copy out") { copy_out }
    report("W", "large") { rows("INSERT INTO t VALUES (40, $1) RETURNING length(v)", "x" * 1_000_000) }
    report("W", "large object") { large_object }
    report("R", "single rows") { single_rows }
    report("R", "cursor") { cursor }
    report("W", "call") { rows("CALL commit_one($1)", 90000) }
    report("W", "vacuum") { rows("VACUUM t") }
    report("W", "concurrent index") { rows("CREATE INDEX CONCURRENTLY ON t(id)") }
    report("E", "syntax error") { rows("SELECT 1 SELEC 2") }
    report("E", "position") { rows("INSERT INTO t VALUES (9, nöpe)") }
    report("E", "position, extended") { rows("INSERT INTO t VALUES ($1, nöpe)", 9) }
    report("E", "duplicate") { rows("INSERT INTO t VALUES ($1, 1), ($1, 1)", 1) }
    report("R", "division") { rows("SELECT 1 / $1::int", 0) }
    report("R", "cancel") { cancel }
    report("R", "notify") { notified }
    report("W", "own notify") { rows("NOTIFY own") }
    report("W", "serializable") { level("INSERT INTO t VALUES (50, 's')", "ISOLATION LEVEL SERIALIZABLE") }
    report("R", "read only") { level("SELECT count(*) >= 0 FROM t", "READ ONLY") }
    report("W", "reset") { reset }
    report("R", "alive") { rows("SELECT 'alive'") }
  end
end

$stdin.each_line do |line|
  Program.new(Run.new(*line.chomp.split("\t", -1)))
  puts "."
  $stdout.flush
end
