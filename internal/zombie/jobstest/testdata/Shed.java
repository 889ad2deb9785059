import java.time.Duration;
import java.time.Instant;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.jdbc.core.JdbcTemplate;

/** A job under ShedLock. The argument is the database's URL. */
class Shed {
  public static void main(String[] args) {
    PGSimpleDataSource source = new PGSimpleDataSource();
    source.setUrl(args[0]);
    source.setUser(System.getenv("PGUSER"));
    source.setOptions(System.getenv("PGOPTIONS"));
    JdbcTemplate jdbc = new JdbcTemplate(source);
    JdbcTemplateLockProvider provider =
        new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder().withJdbcTemplate(jdbc).usingDbTime().build());
    new DefaultLockingTaskExecutor(provider)
        .executeWithLock(
            (Runnable)
                () -> {
                  int orders = jdbc.queryForObject("SELECT orders FROM totals", Integer.class);
                  jdbc.update("UPDATE totals SET orders = ?", orders + 1);
                },
            new LockConfiguration(Instant.now(), "nightly", Duration.ofMinutes(1), Duration.ZERO));
  }
}
