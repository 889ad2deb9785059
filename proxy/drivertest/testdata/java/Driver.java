// What JDBC's users do.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;

public class Driver {
  private final Run run;
  private final String comment;

  Driver(Run run) {
    this.run = run;
    comment = run.comment();
  }

  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null; ) {
      new Driver(Run.parse(line)).modes();
      System.out.println(".");
    }
  }

  void modes() throws Exception {
    for (String mode : new String[] {"extended", "simple", "extendedForPrepared", "extendedCacheEverything"}) {
      try (Connection c = run.connect("preferQueryMode", mode)) {
        scenario(mode + " / ", c);
      }
      try (Connection c = run.unfenced()) { // the next mode starts anew; not to hide what was written
        rowsBefore(mode, c);
        c.createStatement().execute("TRUNCATE t");
      }
    }
    rewritten();
  }

  private void rowsBefore(String mode, Connection c) throws Exception {
    Run.report("W", mode + " / rows", () -> one(c, "SELECT CASE WHEN count(*) > 0 THEN count(*)::text ELSE 'error WF001' END FROM t"));
  }

  // The driver joins a batch's inserts into one of many rows.
  private void rewritten() throws Exception {
    try (Connection c = run.connect("reWriteBatchedInserts", "true")) {
      Run.report("W", "rewritten batch", () -> Run.transaction(c, () -> batch(c, 500)));
      Run.report("W", "rewritten batch by itself", () -> batch(c, 1000));
      Run.report("R", "alive", () -> one(c, "SELECT 'alive'"));
    }
  }

  private Object one(Connection c, String sql, Object... args) throws SQLException {
    return run.one(c, sql, args);
  }

  private Object batch(Connection c, int from) throws SQLException {
    try (PreparedStatement s = c.prepareStatement("INSERT INTO t VALUES (?, ?)" + comment)) {
      for (int i = 0; i < 300; i++) {
        s.setInt(1, from + i);
        s.setString(2, "batch");
        s.addBatch();
      }
      return Arrays.stream(s.executeBatch()).filter(n -> n != 0).count();
    }
  }

  private void scenario(String mode, Connection c) throws Exception {
    PGConnection pg = c.unwrap(PGConnection.class);
    Run.report("R", mode + "select", () -> one(c, "SELECT 1 + ?::int", 1));
    Run.report("W", mode + "insert", () -> one(c, "INSERT INTO t VALUES (?, ?)", 1, "Ünicöde"));
    Run.report("W", mode + "returning", () -> one(c, "INSERT INTO t VALUES (2, 'b') RETURNING v"));
    Run.report("W", mode + "function", () -> one(c, "SELECT write_one(?)", 3));
    Run.report("W", mode + "statement", () -> c.createStatement().executeUpdate("INSERT INTO t VALUES (4, 'c'); INSERT INTO t VALUES (5, 'd')" + comment));
    Run.report("W", mode + "generated keys", () -> {
      try (PreparedStatement s = c.prepareStatement("INSERT INTO t VALUES (6, 'k')" + comment, Statement.RETURN_GENERATED_KEYS)) {
        s.executeUpdate();
        ResultSet r = s.getGeneratedKeys();
        r.next();
        return r.getInt(1);
      }
    });
    Run.report("W", mode + "transaction", () -> Run.transaction(c, () -> {
      one(c, "INSERT INTO t VALUES (10, 'tx')");
      Savepoint p = c.setSavepoint("s");
      one(c, "DELETE FROM t");
      c.rollback(p);
      return one(c, "UPDATE t SET v = 'ty' WHERE id = 10 RETURNING v");
    }));
    Run.report("W", mode + "prepared", () -> {
      Object last = null;
      try (PreparedStatement s = c.prepareStatement("INSERT INTO t VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v" + comment)) {
        for (int i = 0; i < 12; i++) { // named on the server from the fifth on
          s.setInt(1, 20 + i % 2);
          s.setString(2, "p" + i);
          last = s.executeUpdate();
        }
      }
      return last;
    });
    Run.report("R", mode + "prepared read", () -> {
      int sum = 0;
      try (PreparedStatement s = c.prepareStatement("SELECT ?::int" + comment)) {
        for (int i = 0; i < 12; i++) {
          s.setInt(1, i);
          ResultSet r = s.executeQuery();
          r.next();
          sum += r.getInt(1);
        }
      }
      return sum;
    });
    Run.report("W", mode + "batch", () -> Run.transaction(c, () -> batch(c, 100)));
    Run.report("W", mode + "batch by itself", () -> batch(c, 3000));
    Run.report("R", mode + "fetch size", () -> Run.transaction(c, () -> {
      int n = 0;
      try (Statement s = c.createStatement()) {
        s.setFetchSize(7);
        ResultSet r = s.executeQuery("SELECT generate_series(1, 100)" + comment);
        while (r.next()) n++;
      }
      return n;
    }));
    CopyManager copies = pg.getCopyAPI();
    StringBuilder lines = new StringBuilder();
    for (int i = 0; i < 2000; i++) lines.append(1000 + i).append("\trow\n");
    Run.report("W", mode + "copy in", () -> copies.copyIn("COPY t FROM STDIN" + comment, new StringReader(lines.toString())));
    Run.report("E", mode + "copy fails", () -> copies.copyIn("COPY t FROM STDIN" + comment, new StringReader("no number\tx\n" + lines)));
    Run.report("R", mode + "copy out", () -> {
      StringWriter out = new StringWriter();
      copies.copyOut("COPY (SELECT generate_series(1, 3000)) TO STDOUT" + comment, out);
      return out.toString().length();
    });
    Run.report("W", mode + "large", () -> one(c, "INSERT INTO t VALUES (7, ?) RETURNING length(v)", "x".repeat(1_000_000)));
    Run.report("V", mode + "large object", () -> Run.transaction(c, () -> { // by FunctionCall messages
      LargeObjectManager all = pg.getLargeObjectAPI();
      long oid = all.createLO();
      LargeObject o = all.open(oid);
      o.write("hello".getBytes());
      o.seek(0);
      String text = new String(o.read(5));
      o.close();
      all.delete(oid);
      return text;
    }));
    Run.report("W", mode + "call", () -> one(c, "CALL commit_one(?)", 90000));
    Run.report("W", mode + "vacuum", () -> one(c, "VACUUM t"));
    Run.report("W", mode + "concurrent index", () -> one(c, "CREATE INDEX CONCURRENTLY ON t(id)"));
    Run.report("E", mode + "syntax error", () -> one(c, "SELECT 1 SELEC 2"));
    Run.report("E", mode + "position", () -> one(c, "INSERT INTO t VALUES (9, nöpe)"));
    Run.report("E", mode + "duplicate", () -> one(c, "INSERT INTO t VALUES (1, 'again')"));
    Run.report("R", mode + "division", () -> one(c, "SELECT 1 / ?::int", 0));
    Run.report("R", mode + "cancel", () -> {
      try (Statement s = c.createStatement(); Connection other = run.unfenced()) {
        AtomicBoolean ended = new AtomicBoolean(); // at once, if it is stale
        CompletableFuture<Void> canceller = CompletableFuture.runAsync(() -> cancelWhenAsleep(s, other, ended));
        try {
          return s.execute("SELECT pg_sleep(60)" + comment);
        } finally {
          ended.set(true);
          canceller.get();
        }
      }
    });
    Run.report("R", mode + "notify", () -> {
      c.createStatement().execute("LISTEN news");
      try (Connection other = run.unfenced()) {
        other.createStatement().execute("NOTIFY news, 'hello'");
      }
      PGNotification[] heard = pg.getNotifications(30_000);
      return heard == null ? "nothing" : heard[0].getName() + " " + heard[0].getParameter();
    });
    Run.report("R", mode + "metadata", () -> c.getMetaData().getTables(null, "public", "t", null).next());
    Run.report("S", mode + "valid", () -> c.isValid(10)); // by an empty text
    c.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
    Run.report("W", mode + "repeatable read", () -> Run.transaction(c, () -> one(c, "INSERT INTO t VALUES (50, 'r')")));
    c.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
    c.setReadOnly(true);
    Run.report("R", mode + "read only", () -> Run.transaction(c, () -> one(c, "SELECT count(*) >= 0 FROM t")));
    c.setReadOnly(false);
    Run.report("W", mode + "reset", () -> {
      c.createStatement().execute("DISCARD ALL");
      c.createStatement().execute(run.set());
      return one(c, "INSERT INTO t VALUES (?, 'behind the reset')", 61);
    });
    Run.report("R", mode + "alive", () -> one(c, "SELECT 'alive'"));
  }

  private static void cancelWhenAsleep(Statement s, Connection other, AtomicBoolean ended) {
    try (PreparedStatement asleep = other.prepareStatement(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")) {
      while (!ended.get()) {
        ResultSet r = asleep.executeQuery();
        r.next();
        if (r.getBoolean(1)) {
          s.cancel();
          return;
        }
      }
    } catch (SQLException e) {
      throw new IllegalStateException(e);
    }
  }
}
