package proxy

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAFloodIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []int
		var last error
		b := burstLog{report: func(n int, err error) { reports, last = append(reports, n), err }}
		away, gone := errors.New("away"), errors.New("gone")
		wants := func(what string, want ...int) {
			t.Helper()
			synctest.Wait()
			b.mu.Lock() // it is reported under it
			defer b.mu.Unlock()
			if !slices.Equal(reports, want) {
				t.Errorf("%s: reported %v, want %v", what, reports, want)
			}
		}
		if !b.record(away) {
			t.Error("the first event is not logged")
		}
		for range 2000 {
			if b.record(gone) {
				t.Fatal("a further event is logged")
			}
		}
		wants("at first")
		time.Sleep(burstPeriod)
		wants("after a period", 2000)
		if last != gone {
			t.Errorf("the last error is %v", last)
		}
		b.record(away)
		time.Sleep(burstPeriod)
		wants("after another", 2000, 1)
		time.Sleep(burstPeriod)
		wants("after a quiet one", 2000, 1)
		if !b.record(away) {
			t.Error("the first event after a quiet period is not logged")
		}
		b.record(away)
		b.stop()
		wants("at the end", 2000, 1, 1)
		if !b.record(away) {
			t.Error("an event after the end is not logged")
		}
	})
}
