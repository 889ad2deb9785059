package lockclient_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/pages"
	"github.com/wirefence/wirefence/internal/stack"
)

// documented returns the first block in a language of the section on plain SQL in docs/reference/effects.md.
func documented(t *testing.T, language string) string {
	t.Helper()
	text, err := pages.First("../docs/reference/effects.md", "In plain SQL", language)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// useGuard uses the documented function as its reader would.
const useGuard = `
import os, urllib.request
def effect():
    with open(os.environ["REPORT"], "rb") as report:
        urllib.request.urlopen(urllib.request.Request(os.environ["TARGET"], report.read(), method="PUT"), timeout=30)
try:
    guard(os.environ["DATABASE_URL"], os.environ["WIREFENCE_FENCE"], effect)
    print("done")
    print("the fence held")
except InDoubt as doubt:
    lost = doubt.__cause__
    print("failed" if lost.__context__ else "done")
    print("in doubt:", lost)
except urllib.error.HTTPError:
    print("failed")
    print("the fence held")
except psycopg.Error as refused:
    print(refused)
`

// The scripts in docs/reference/effects.md report each outcome as the page says.
func TestTheDocumentedEffects(t *testing.T) {
	stack.NeedsMore(t, "curl and Python's psycopg")
	for name, command := range map[string][]string{
		"python": {"/usr/bin/python3", "-c", documented(t, "python") + useGuard},
		"sh":     {"sh", "-c", documented(t, "sh")},
	} {
		t.Run(name, func(t *testing.T) {
			url, admin := startPostgres(t)
			name := admin.Config().Database
			stack.Exec(t, url, "CREATE ROLE app_"+name+" LOGIN")
			for _, token := range []fence.Token{33, 34} {
				if _, err := fence.Seal(t.Context(), admin, fence.Grant{Resource: "orders", Token: token}); err != nil {
					t.Fatal(err)
				}
			}
			var reports atomic.Int32
			store := http.NewServeMux()
			put := func(path string, status int, then func()) {
				store.HandleFunc("PUT "+path, func(w http.ResponseWriter, r *http.Request) {
					if text, err := io.ReadAll(r.Body); err != nil || string(text) != "all is well" {
						t.Errorf("got %q, %v", text, err)
					}
					reports.Add(1)
					then()
					w.WriteHeader(status)
				})
			}
			put("/report", http.StatusOK, func() {})
			put("/full", http.StatusInsufficientStorage, func() {})
			put("/revoked", http.StatusOK, func() {
				if _, err := fence.Revoke(context.Background(), admin, "orders"); err != nil {
					t.Error(err)
				}
			})
			server := httptest.NewServer(store)
			t.Cleanup(server.Close)
			report := filepath.Join(t.TempDir(), "report")
			if err := os.WriteFile(report, []byte("all is well"), 0o600); err != nil {
				t.Fatal(err)
			}
			for i, c := range []struct {
				fence, path string
				reports     int32
				says, not   string
			}{
				{"orders=33", "/report", 0, "stale fencing token", "done"},
				{"orders=34", "/report", 1, "done\nthe fence held", "failed"},
				{"orders=34", "/full", 2, "failed\nthe fence held", "done"},
				{"orders=34", "/revoked", 3, "done\n", "the fence held"},
				{"orders=34", "/report", 3, "stale fencing token", "done"},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				run := exec.CommandContext(ctx, command[0], command[1:]...)
				run.Env = append(os.Environ(), "DATABASE_URL="+suite.Server(t, 0).URLFor("app_"+name, name),
					"WIREFENCE_FENCE="+c.fence, "REPORT="+report, "TARGET="+server.URL+c.path)
				out, err := run.CombinedOutput()
				cancel()
				if reports.Load() != c.reports || !strings.Contains(string(out), c.says) || strings.Contains(string(out), c.not) {
					t.Errorf("%d: %v, %d reports, says %s", i, err, reports.Load(), out)
				}
			}
		})
	}
}
