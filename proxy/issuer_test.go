package proxy

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/internal/quietlog"
)

// A poll that fails is logged at growing intervals, and once when it works again.
func TestFailedPollsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		outage := quietlog.Outage(slog.New(slog.NewTextHandler(&log, nil)))
		p := poll{failing: "cannot ask", working: "asking again"}
		for _, err := range []error{nil, nil, errors.New("refused"), errors.New("no password"), errors.New("refused"), nil, nil} {
			p.report(outage, time.Second, err)
			time.Sleep(time.Second)
		}
		warnings, ends := strings.Count(log.String(), "cannot ask"), strings.Count(log.String(), "again")
		if warnings != 2 || ends != 1 {
			t.Errorf("%d warnings, %d ends:\n%s", warnings, ends, log.String())
		}
	})
}
