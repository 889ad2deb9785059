package securitytest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A password in clear in the user file is prepared as libpq and the server do.
func TestPasswordsBeyondASCII(t *testing.T) {
	stack.NeedsMore(t, "4 s of CPU")
	t.Parallel()
	w := start(t, 0)
	var statements, lines, passwords []string
	for _, password := range []string{
		"I\u2168", "soft\u00adhyphen", "\u00aa", "zero\u200bwidth", "\ufb01ne", "1806\u1806x", "no\u00a0break", // changed
		"e\u0301", "\u212b", "\uff21", "\u0132", // not in the normal form
		"\u0340x", "\u1d2c", "\u1d43\u00aa", "\u0007\u00aa", "\U000e0001\u00aa", "\u0221\u00aa", // prohibited, or not assigned in Unicode 3.2
		"\u0627\u0628\u00ad", "\u0627\u00aa", "\u0627a\ufb01", "\u0675\u0627", // from right to left, and mixed
		"\u00ad", "\u200b", // nothing remains, or a space
		"ordinary", "se same", "gr\u00fc\u00dfe",
	} {
		passwords = append(passwords, password)
		user := fmt.Sprintf("u%d", len(passwords)-1)
		statements = append(statements, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", user, password))
		lines = append(lines, fmt.Sprintf(`"%s" "%s"`, user, password))
	}
	stack.Exec(t, w.admin(), statements...)
	inClear := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream(""), AuthFile: w.userFile(t, nil, lines...)})
	for i, password := range passwords {
		params := fmt.Sprintf("user=u%d password='%s'", i, password)
		if direct := psql(t, w.Addr(), params, "SELECT 1"); direct != "1" {
			t.Fatalf("%+q without the proxy: %s", password, direct)
		}
		if got := psql(t, inClear, params, "SELECT 1"); got != "1" {
			t.Errorf("%+q: %s", password, got)
		}
		if got := psql(t, inClear, strings.Replace(params, "password='", "password='x", 1), "SELECT 1"); !strings.Contains(got, "password authentication failed") {
			t.Errorf("another than %+q: %s", password, got)
		}
	}
}
