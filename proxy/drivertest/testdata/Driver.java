// What JDBC does; main_test.go says what the lines mean.

import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.Arrays;
import java.util.Properties;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;
import org.postgresql.util.PSQLException;

public class Driver {
  interface Act {
    Object run() throws Exception;
  }

  static void report(String kind, String name, Act act) throws Exception {
    Object result;
    try {
      result = act.run();
    } catch (SQLException e) {
      result = "error " + e.getSQLState();
      if (e instanceof PSQLException p && p.getServerErrorMessage() != null && p.getServerErrorMessage().getPosition() > 0) {
        result += " at " + p.getServerErrorMessage().getPosition();
      }
    }
    System.out.println(kind + " " + name + ": " + result);
  }

  static Connection connect(String port, String options, String... more) throws SQLException {
    Properties p = new Properties();
    p.setProperty("user", "postgres");
    p.setProperty("sslmode", "disable");
    if (!options.isEmpty()) p.setProperty("options", options);
    for (int i = 0; i < more.length; i += 2) p.setProperty(more[i], more[i + 1]);
    return DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + port + "/" + System.getenv("PGDATABASE"), p);
  }

  static Object one(Connection c, String sql, Object... args) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(sql)) {
      for (int i = 0; i < args.length; i++) s.setObject(i + 1, args[i]);
      if (!s.execute()) return s.getUpdateCount();
      try (ResultSet r = s.getResultSet()) {
        return r.next() ? r.getObject(1) : null;
      }
    }
  }

  interface In {
    Object run() throws Exception;
  }

  static Object transaction(Connection c, In body) throws Exception {
    c.setAutoCommit(false);
    try {
      Object result = body.run();
      c.commit();
      return result;
    } catch (Exception e) {
      c.rollback();
      throw e;
    } finally {
      c.setAutoCommit(true);
    }
  }

  public static void main(String[] args) throws Exception {
    String port = System.getenv("PGPORT"), options = System.getenv("PGOPTIONS");
    for (String mode : new String[] {"extended", "simple", "extendedForPrepared", "extendedCacheEverything"}) {
      try (Connection c = connect(port, options, "preferQueryMode", mode)) {
        c.createStatement().execute("SET application_name = 'driver'");
        scenario(mode + " ", c);
      }
      truncate();
    }
    rewritten(port, options);
  }

  static void truncate() throws SQLException {
    try (Connection c = connect(System.getenv("DIRECT_PORT"), "")) {
      one(c, "TRUNCATE t");
    }
  }

  // The driver joins a batch's inserts into one of many rows.
  static void rewritten(String port, String options) throws Exception {
    try (Connection c = connect(port, options, "reWriteBatchedInserts", "true")) {
      report("W", "rewritten batch", () -> transaction(c, () -> batch(c, 500)));
    }
  }

  static Object batch(Connection c, int from) throws SQLException {
    try (PreparedStatement s = c.prepareStatement("INSERT INTO t VALUES (?, ?)")) {
      for (int i = 0; i < 300; i++) {
        s.setInt(1, from + i);
        s.setString(2, "batch");
        s.addBatch();
      }
      return Arrays.stream(s.executeBatch()).filter(n -> n != 0).count();
    }
  }

  static void scenario(String mode, Connection c) throws Exception {
    PGConnection pg = c.unwrap(PGConnection.class);
    report("R", mode + "select", () -> one(c, "SELECT 1 + ?::int", 1));
    report("W", mode + "insert", () -> one(c, "INSERT INTO t VALUES (?, ?)", 1, "Ünicöde"));
    report("W", mode + "returning", () -> one(c, "INSERT INTO t VALUES (2, 'b') RETURNING v"));
    report("W", mode + "function", () -> one(c, "SELECT write_one(?)", 3));
    report("W", mode + "statement", () -> c.createStatement().executeUpdate("INSERT INTO t VALUES (4, 'c'); INSERT INTO t VALUES (5, 'd')"));
    report("W", mode + "generated keys", () -> {
      try (PreparedStatement s = c.prepareStatement("INSERT INTO t VALUES (6, 'k')", Statement.RETURN_GENERATED_KEYS)) {
        s.executeUpdate();
        ResultSet r = s.getGeneratedKeys();
        r.next();
        return r.getInt(1);
      }
    });
    report("W", mode + "transaction", () -> transaction(c, () -> {
      one(c, "INSERT INTO t VALUES (10, 'tx')");
      Savepoint p = c.setSavepoint("s");
      one(c, "DELETE FROM t");
      c.rollback(p);
      return one(c, "UPDATE t SET v = 'ty' WHERE id = 10 RETURNING v");
    }));
    report("W", mode + "prepared", () -> {
      Object last = null;
      try (PreparedStatement s = c.prepareStatement("INSERT INTO t VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v")) {
        for (int i = 0; i < 12; i++) { // named on the server from the fifth on
          s.setInt(1, 20 + i % 2);
          s.setString(2, "p" + i);
          last = s.executeUpdate();
        }
      }
      return last;
    });
    report("R", mode + "prepared read", () -> {
      int sum = 0;
      try (PreparedStatement s = c.prepareStatement("SELECT ?::int")) {
        for (int i = 0; i < 12; i++) {
          s.setInt(1, i);
          ResultSet r = s.executeQuery();
          r.next();
          sum += r.getInt(1);
        }
      }
      return sum;
    });
    report("W", mode + "batch", () -> transaction(c, () -> batch(c, 100)));
    report("W", mode + "batch by itself", () -> batch(c, 3000));
    report("R", mode + "fetch size", () -> transaction(c, () -> {
      int n = 0;
      try (Statement s = c.createStatement()) {
        s.setFetchSize(7);
        ResultSet r = s.executeQuery("SELECT generate_series(1, 100)");
        while (r.next()) n++;
      }
      return n;
    }));
    CopyManager copies = pg.getCopyAPI();
    StringBuilder lines = new StringBuilder();
    for (int i = 0; i < 2000; i++) lines.append(1000 + i).append("\trow\n");
    report("W", mode + "copy in", () -> copies.copyIn("COPY t FROM STDIN", new StringReader(lines.toString())));
    report("E", mode + "copy fails", () -> copies.copyIn("COPY t FROM STDIN", new StringReader("no number\tx\n" + lines)));
    report("R", mode + "copy out", () -> {
      StringWriter out = new StringWriter();
      copies.copyOut("COPY (SELECT generate_series(1, 3000)) TO STDOUT", out);
      return out.toString().length();
    });
    report("W", mode + "large", () -> one(c, "INSERT INTO t VALUES (7, ?) RETURNING length(v)", "x".repeat(1_000_000)));
    report("W", mode + "large object", () -> transaction(c, () -> { // by FunctionCall messages
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
    report("R", mode + "syntax error", () -> one(c, "SELECT 1 SELEC 2"));
    report("E", mode + "position", () -> one(c, "INSERT INTO t VALUES (9, nöpe)"));
    report("E", mode + "duplicate", () -> one(c, "INSERT INTO t VALUES (1, 'again')"));
    report("R", mode + "division", () -> one(c, "SELECT 1 / ?::int", 0));
    report("R", mode + "cancel", () -> {
      try (Statement s = c.createStatement()) {
        s.setQueryTimeout(1); // seconds; the driver then sends a CancelRequest
        return s.execute("SELECT pg_sleep(60)");
      }
    });
    report("R", mode + "alive", () -> one(c, "SELECT 'alive'"));
    report("R", mode + "notify", () -> {
      c.createStatement().execute("LISTEN news");
      try (Connection other = connect(System.getenv("DIRECT_PORT"), "")) {
        other.createStatement().execute("NOTIFY news, 'hello'");
      }
      PGNotification[] heard = pg.getNotifications(30_000);
      return heard == null ? "nothing" : heard[0].getName() + " " + heard[0].getParameter();
    });
    report("R", mode + "metadata", () -> c.getMetaData().getTables(null, "public", "t", null).next());
    report("R", mode + "valid", () -> c.isValid(10));
    c.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
    report("W", mode + "repeatable read", () -> transaction(c, () -> one(c, "INSERT INTO t VALUES (50, 'r')")));
  }
}
