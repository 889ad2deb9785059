import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.jdbc.lock.DefaultLockRepository;
import org.springframework.integration.jdbc.lock.JdbcLockRegistry;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;

/** Takes a lock with a library of Spring's users, extends it and gives it back, as it is told. */
class SpringLocks {
  public static void main(String[] args) throws Exception {
    int seconds = Integer.parseInt(args[3]);
    Map<String, Callable<Boolean>> does =
        switch (args[0]) {
          case "JdbcTemplateLockProvider" -> shedLock(inTable(database(args[1])), args[2], seconds);
          case "RedisLockProvider" -> shedLock(inRedis(args[1], args[2].split(":")), args[2].split(":")[2], seconds);
          default -> registry(database(args[1]), args[2], seconds);
        };
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String told = in.readLine(); told != null; told = in.readLine()) {
      boolean did = false;
      try {
        did = does.get(told).call();
      } catch (RuntimeException e) {
        System.err.println(told + " " + e);
      }
      System.out.println(did ? "yes" : "no");
    }
  }

  static DataSource database(String url) {
    PGSimpleDataSource source = new PGSimpleDataSource();
    source.setUrl(url);
    return source;
  }

  static LockProvider inTable(DataSource source) {
    return new JdbcTemplateLockProvider(
        JdbcTemplateLockProvider.Configuration.builder()
            .withJdbcTemplate(new JdbcTemplate(source))
            .usingDbTime()
            .withLockedByValue(Long.toString(ProcessHandle.current().pid()))
            .build());
  }

  /** The key is a prefix, an environment and a name. Without safeUpdate, extend takes the lock from its next holder. */
  static LockProvider inRedis(String url, String[] key) {
    LettuceConnectionFactory redis = new LettuceConnectionFactory(LettuceConnectionFactory.createRedisConfiguration(url));
    redis.start();
    return new RedisLockProvider.Builder(redis).keyPrefix(key[0]).environment(key[1]).safeUpdate(true).build();
  }

  static SimpleLock held;

  static Map<String, Callable<Boolean>> shedLock(LockProvider provider, String name, int seconds) {
    Duration time = Duration.ofSeconds(seconds);
    return Map.of(
        "acquire", () -> {
          Optional<SimpleLock> lock = provider.lock(new LockConfiguration(Instant.now(), name, time, Duration.ZERO));
          lock.ifPresent(l -> held = l);
          return lock.isPresent();
        },
        "extend", () -> {
          Optional<SimpleLock> lock = held.extend(time, Duration.ZERO);
          lock.ifPresent(l -> held = l);
          return lock.isPresent();
        },
        "release", () -> {
          held.unlock();
          return true;
        });
  }

  static Map<String, Callable<Boolean>> registry(DataSource source, String name, int seconds) {
    DefaultLockRepository repository = new DefaultLockRepository(source);
    repository.setTransactionManager(new DataSourceTransactionManager(source));
    repository.setTimeToLive(seconds * 1000);
    repository.afterPropertiesSet();
    repository.afterSingletonsInstantiated();
    JdbcLockRegistry registry = new JdbcLockRegistry(repository);
    Lock lock = registry.obtain(name);
    return Map.of(
        "acquire", () -> lock.tryLock(100, TimeUnit.MILLISECONDS),
        "extend", () -> {
          registry.renewLock(name);
          return true;
        },
        "release", () -> {
          lock.unlock();
          return true;
        });
  }
}
