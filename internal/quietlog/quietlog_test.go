package quietlog

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// recorder collects log lines without their times.
type recorder struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *recorder) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(text)
}

func (r *recorder) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// take returns the lines since the last call.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.text.Reset()
	return strings.TrimSpace(strings.ReplaceAll(r.text.String(), "msg=", ""))
}

// A failure is logged at once, then after 1, 2, 4 s and so on, and every 5 minutes in the
// end; the success that ends it is logged once.
func TestIntervalsOfAnOutageGrow(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelError} {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lines recorder
				log := Outage(lines.logger(level)).With("of", "it")
				for range 2 { // the second outage begins anew
					if log.Info("works"); lines.take() != "" {
						t.Error("an outage ends that has not begun")
					}
					last := time.Now()
					var intervals []int
					for range 1200 { // s
						log.Error("fails")
						if text := lines.take(); text != "" {
							if !strings.HasPrefix(text, "fails of=it") {
								t.Errorf("logged %q", text)
							}
							intervals = append(intervals, int(time.Since(last).Seconds()))
							last = time.Now()
						}
						time.Sleep(time.Second)
					}
					if want := []int{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}; !reflect.DeepEqual(intervals, want) {
						t.Errorf("logged after %v s, want %v", intervals, want)
					}
					want := map[slog.Level]string{slog.LevelInfo: "works of=it after=20m0s left_out=88"}[level]
					if log.Info("works"); lines.take() != want {
						t.Errorf("the end isn't logged as %q", want)
					}
				}
			})
		})
	}
}

// Of a flood of events one line passes in an interval, with the number of the others.
func TestAFloodIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines recorder
		limiter := Limiter{Every: 10 * time.Second}
		one, other := limiter.On(lines.logger(slog.LevelInfo)), limiter.On(lines.logger(slog.LevelInfo).With("client", "other"))
		wants := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := lines.take(); got != want {
				t.Errorf("%s: logged %q, want %q", when, got, want)
			}
		}
		one.Error("away", "client", "one")
		for i := range 2000 {
			other.Error("gone", "i", i)
		}
		wants("at first", "away client=one")
		time.Sleep(10 * time.Second)
		wants("after an interval", "gone client=other i=1999 left_out=1999")
		one.Error("away")
		time.Sleep(10 * time.Second)
		wants("after another", "away")
		time.Sleep(10 * time.Second)
		wants("after a quiet one", "")
		one.Error("away")
		wants("the first event after a quiet one", "away")
		one.Error("gone")
		one.Error("gone")
		limiter.End()
		wants("at the end", "gone left_out=1")
		limiter.End()
		wants("at the end, again", "")
		one.Error("late")
		wants("after the end", "late")
		one.Error("later")
		wants("after the end, again", "later")
	})
}

// The zero value lets one line a second pass.
func TestTheZeroLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines recorder
		var limiter Limiter
		log := limiter.On(lines.logger(slog.LevelInfo))
		for i, c := range []struct {
			after time.Duration
			want  string
		}{{0, "refused"}, {0, ""}, {999 * time.Millisecond, ""}} {
			time.Sleep(c.after)
			if log.Warn("refused"); lines.take() != c.want {
				t.Errorf("line %d isn't logged as %q", i, c.want)
			}
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := lines.take(); got != "refused left_out=1" {
			t.Errorf("after a second: logged %q", got)
		}
		time.Sleep(time.Hour)
		for range 40 {
			log.Warn("refused")
			time.Sleep(100 * time.Millisecond)
		}
		limiter.End()
		if text := lines.take(); strings.Count(text, "refused") != 5 {
			t.Errorf("in 4 s, not 5 lines but:\n%s", text)
		}
	})
}

func TestErrorAttrsHaveDetailAndHint(t *testing.T) {
	refusal := &pgconn.PgError{Message: "no", Detail: "why", Hint: "what to do"}
	err := fmt.Errorf("acquire: %w", refusal)
	if got, want := ErrorAttrs(err), []any{"error", err, "detail", "why", "hint", "what to do"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
	if got := ErrorAttrs(errors.New("x")); len(got) != 2 {
		t.Errorf("%v", got)
	}
}
