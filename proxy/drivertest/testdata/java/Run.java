// How a program in Java is run: a line of input starts a run, its lines and a dot
// end it. way_test.go says what the lines mean.

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Properties;
import org.postgresql.util.PSQLException;

record Run(String port, String direct, String database, String security, String options, String set, String comment) {
  interface Act {
    Object run() throws Exception;
  }

  static Run parse(String line) {
    String[] f = line.split("\t", -1);
    return new Run(f[0], f[1], f[2], f[3], f[4], f[5], f[6]);
  }

  /** Connects to the run's port, with more properties by name and value. */
  Connection connect(String... more) throws SQLException {
    Properties p = properties(more);
    if (!options.isEmpty()) p.setProperty("options", options);
    Connection c = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + port + "/" + database, p);
    c.createStatement().execute(set);
    return c;
  }

  /** Connects to the server itself, without a fence. */
  Connection unfenced() throws SQLException {
    return DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + direct + "/" + database, properties());
  }

  private Properties properties(String... more) {
    Properties p = new Properties();
    p.setProperty("user", System.getenv("PGUSER"));
    p.setProperty("password", System.getenv("PGPASSWORD"));
    if (security.equals("plain")) {
      p.setProperty("sslmode", "disable");
    } else {
      p.setProperty("sslmode", "verify-full");
      p.setProperty("sslrootcert", System.getenv("ROOT_CERT"));
    }
    for (int i = 0; i < more.length; i += 2) p.setProperty(more[i], more[i + 1]);
    return p;
  }

  Object one(Connection c, String sql, Object... args) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(sql + comment)) {
      for (int i = 0; i < args.length; i++) s.setObject(i + 1, args[i]);
      if (!s.execute()) return s.getUpdateCount();
      try (ResultSet r = s.getResultSet()) {
        return r.next() ? r.getObject(1) : null;
      }
    }
  }

  static Object transaction(Connection c, Act body) throws Exception {
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
}
