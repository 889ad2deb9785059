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
		f := flood{report: func(n int, err error) { reports, last = append(reports, n), err }}
		away, gone := errors.New("away"), errors.New("gone")
		wants := func(what string, want ...int) {
			t.Helper()
			synctest.Wait()
			f.mu.Lock() // it is reported under it
			defer f.mu.Unlock()
			if !slices.Equal(reports, want) {
				t.Errorf("%s: reported %v, want %v", what, reports, want)
			}
		}
		if !f.note(away) {
			t.Error("the first event is not logged")
		}
		for range 2000 {
			if f.note(gone) {
				t.Fatal("a further event is logged")
			}
		}
		wants("at first")
		time.Sleep(floodPeriod)
		wants("after a period", 2000)
		if last != gone {
			t.Errorf("the last error is %v", last)
		}
		f.note(away)
		time.Sleep(floodPeriod)
		wants("after another", 2000, 1)
		time.Sleep(floodPeriod)
		wants("after a quiet one", 2000, 1)
		if !f.note(away) {
			t.Error("the first event after a quiet period is not logged")
		}
		f.note(away)
		f.stop()
		wants("at the end", 2000, 1, 1)
		if !f.note(away) {
			t.Error("an event after the end is not logged")
		}
	})
}
