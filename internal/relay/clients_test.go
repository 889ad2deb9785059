package relay

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// redis-py's Lock: acquire, a second that doesn't wait, extend, reacquire, release, a late release.
const redisPy = `
import sys, redis
from redis.exceptions import LockError
port, key = int(sys.argv[1]), sys.argv[2]
r = redis.Redis(port=port)
a, b = r.lock(key, timeout=30), r.lock(key, timeout=30)
assert a.acquire() and a.owned()
print("acquired", flush=True); input()
assert not b.acquire(blocking=False)
assert a.extend(10) and a.reacquire()
print("extended", flush=True); input()
a.release()
print("released", flush=True); input()
assert b.acquire(blocking=False)
print("acquired", flush=True); input()
try:
    a.local.token = b"late"
    a.release()
    raise SystemExit("a late release freed the lock")
except LockError:
    pass
print("late", flush=True); input()
with r.pipeline() as p:
    p.set("n-" + key, 1).incr("n-" + key)
    assert p.execute() == [True, 2]
b.release()
print("released", flush=True); input()
`

func TestRedisPy(t *testing.T) {
	t.Parallel()
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import redis").CombinedOutput(); err != nil {
		t.Fatalf("python3-redis is missing (scripts/install-servers --test): %s", out)
	}
	w := start(t)
	script := filepath.Join(t.TempDir(), "play.py")
	if err := os.WriteFile(script, []byte(redisPy), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(w.addr, ":")
	cmd := exec.Command(python, script, port, w.lock)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	says := bufio.NewScanner(out)
	for _, step := range []struct{ says, fence string }{{"acquired", "orders=1"}, {"extended", "orders=1"}, {"released", ""}, {"acquired", "orders=2"}, {"late", "orders=2"}, {"released", ""}} {
		if !says.Scan() || says.Text() != step.says {
			_ = in.Close()
			_ = cmd.Wait()
			t.Fatalf("%q, want %s: %s", says.Text(), step.says, complaints.String())
		}
		w.wantFence(t, step.fence)
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err, complaints.String())
	}
}
