package conformance

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
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
