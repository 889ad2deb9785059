import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Takes Redisson's lock, which its watchdog extends, and gives it back as it is told. */
class RedissonLock {
  public static void main(String[] args) throws Exception {
    Config config = new Config();
    config.setLockWatchdogTimeout(Long.parseLong(args[2]) * 1000);
    config.useSingleServer().setAddress(args[0].replaceAll("/0$", ""));
    RedissonClient client = Redisson.create(config);
    RLock lock = client.getLock(args[1]);
    Map<String, Callable<Boolean>> does = Map.of(
        "acquire", () -> lock.tryLock(100, TimeUnit.MILLISECONDS), // and waits for a message
        "extend", () -> { // it is reentrant
          boolean again = lock.tryLock();
          if (again) {
            lock.unlock();
          }
          return again && lock.isHeldByCurrentThread();
        },
        "release", () -> {
          lock.unlock();
          return true;
        });
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String told = in.readLine(); told != null; told = in.readLine()) {
      boolean did = false;
      try {
        did = does.get(told).call();
      } catch (IllegalMonitorStateException e) {
        System.err.println(told + " " + e);
      }
      System.out.println(did ? "yes" : "no");
    }
    client.shutdown();
  }
}
