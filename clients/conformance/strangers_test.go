package conformance

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// strangers is an API whose renewals are answered by something else, with 200: a lease must
// end at its deadline all the same. What an acquire answers can be a stranger's, too.
func strangers(t *testing.T) (url string, renewals *atomic.Int32) {
	t.Helper()
	renewals = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := `{"status": "ok"}`
		const grant = `{"resource": "mine", "token_text": "34", "fence": "mine=34", "holder": "h", "grant_id": "g",
			"ttl_seconds": 1.5, "expires_in_seconds": 1.5, "renew_after_seconds": 0.3}`
		switch {
		case strings.HasSuffix(r.URL.Path, "/mine/acquire"):
			answer = grant
		case strings.HasSuffix(r.URL.Path, "/quoted/acquire"):
			answer = strings.ReplaceAll(grant, "mine=34", `mine=34'*/; DROP TABLE orders --`)
		case strings.HasSuffix(r.URL.Path, "/tokenless/acquire"):
			answer = strings.ReplaceAll(grant, "token_text", "token")
		case strings.HasSuffix(r.URL.Path, "/nested/acquire"):
			answer = strings.Repeat("[", 1<<19)
		case strings.HasSuffix(r.URL.Path, "/partial/acquire"):
			w.Header().Set("Content-Length", "1000")
			answer = grant[:40]
		case strings.HasSuffix(r.URL.Path, "/renew"):
			renewals.Add(1)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s.URL, renewals
}

// A lease whose renewals something else answers ends, and such a grant is none. A token that
// can't be read now and then stops no renewals.
func TestAnswersOfStrangers(t *testing.T) {
	t.Parallel()
	for language, command := range map[string][]string{
		"python": {python, "-c", `
import os, threading, wirefence
calls = 0
def token():
    global calls
    calls += 1
    if calls == 2:
        raise KeyError("token")
    return "t"
client = wirefence.Client(os.environ["API"], token=token)
for name in "other", "quoted", "tokenless", "nested", "partial":
    calls = 2
    try:
        client.acquire(name)
        print("granted")
    except wirefence.Unavailable:
        print("unavailable")
with client.lease("mine"):
    pass
calls = 0
lease = client.acquire("mine")
print("ended" if lease.ended.wait(10) else "kept", lease.error.cause if lease.error else "")`},
		"typescript": {"node", "--input-type=module", "-e", `
import { Client, Unavailable } from "wirefence";
let calls = 0;
const token = () => { if (++calls === 2) throw new Error("token"); return "t"; };
const client = new Client(process.env.API, { token });
for (const name of ["other", "quoted", "tokenless", "nested", "partial"]) {
  calls = 2;
  await client.acquire(name).then(() => console.log("granted"), (error) => console.log(error instanceof Unavailable ? "unavailable" : error));
}
await client.withLease("mine", {}, async () => undefined);
calls = 0;
const lease = await client.acquire("mine");
const ended = new Promise((done) => lease.signal.addEventListener("abort", () => done("ended " + lease.signal.reason.reason)));
console.log(await Promise.race([ended, new Promise((done) => setTimeout(done, 10000, "kept "))]));
process.exit(0);`},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			url, renewals := strangers(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.Dir = folder
			cmd.Env = append((&world{}).environment("strangers", ""), "API="+url)
			stderr := &strings.Builder{}
			cmd.Stderr = stderr
			out, err := cmd.Output()
			if want := strings.Repeat("unavailable\n", 5) + "ended unreachable\n"; err != nil || string(out) != want {
				t.Errorf("%v: %s%s", err, out, stderr)
			}
			if renewals.Load() < 2 {
				t.Errorf("%d renewals came", renewals.Load())
			}
		})
	}
}

// The time for a request bounds all of it: an answer that comes byte by byte, or never gets through
// TLS's handshake, is none.
func TestAnAnswerThatDrips(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var dripping sync.WaitGroup
	dripping.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			dripping.Go(func() {
				defer conn.Close()
				first := make([]byte, 1)
				_, _ = io.ReadFull(conn, first)
				answer := "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 1000)
				if first[0] == 0x16 { // a handshake of TLS: a record of 4 KiB that says hello
					answer = "\x16\x03\x03\x10\x00\x02\x00\x0f\xfc" + strings.Repeat("\x03", 1000)
				}
				for i := range answer {
					if _, err := io.WriteString(conn, answer[i:i+1]); err != nil {
						return
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
	})
	t.Cleanup(dripping.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	for language, command := range map[string][]string{
		"python": {python, "-c", `
import os, time, wirefence
for scheme in "http", "https":
    began = time.monotonic()
    try:
        wirefence.Client(scheme + "://" + os.environ["API"], timeout=1).acquire("mine")
    except wirefence.Unavailable as error:
        assert time.monotonic() - began < 10 and "none within 1.000 s" in str(error), error
        print("unavailable")`},
		"typescript": {"node", "--input-type=module", "-e", `
import { Client, Unavailable } from "wirefence";
for (const scheme of ["http", "https"]) {
  const began = performance.now();
  await new Client(scheme + "://" + process.env.API, { timeout: 1 }).acquire("mine").catch((error) => {
    if (!(error instanceof Unavailable) || performance.now() - began > 10_000) throw error;
    console.log("unavailable");
  });
}
process.exit(0);`},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.Dir = folder
			cmd.Env = append((&world{}).environment("drips", ""), "API="+listener.Addr().String())
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != "unavailable\nunavailable\n" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
