package watched

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestValueFollowsItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write := func(text string) {
		t.Helper()
		// A new inode each time, as with Kubernetes and writers that rename.
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	var reported []error
	readable := true
	load := func() (string, error) {
		if !readable {
			return "", errors.New("too many open files")
		}
		text, err := os.ReadFile(file)
		if string(text) == "bad" {
			err = errors.New("it is bad")
		}
		return string(text), err
	}
	if _, err := New(load, nil, file); err == nil {
		t.Error("a file that isn't there makes a value")
	}
	write("one")
	v, err := New(load, func(err error) { reported = append(reported, err) }, file)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	v.now = func() time.Time { return now }
	steps := []struct {
		text    string // "" changes nothing
		pass    time.Duration
		want    string
		reports int
	}{
		{"", 0, "one", 0},
		{"two", 0, "one", 0}, // not looked at yet
		{"", 2 * time.Second, "two", 0},
		{"bad", 2 * time.Second, "two", 1},
		{"", 2 * time.Second, "two", 1}, // reported once
		{"three", 2 * time.Second, "three", 1},
	}
	for i, s := range steps {
		if s.text != "" {
			write(s.text)
		}
		now = now.Add(s.pass)
		if got := v.Get(); got != s.want || len(reported) != s.reports {
			t.Errorf("step %d: %q with %v, want %q with %d errors", i, got, reported, s.want, s.reports)
		}
	}
	write("bad")
	if err := v.Reload(); err == nil || v.Get() != "three" {
		t.Errorf("reloading a bad file: %v, %q", err, v.Get())
	}
	write("four")
	if err := v.Reload(); err != nil || v.Get() != "four" {
		t.Errorf("reloading a good file: %v, %q", err, v.Get())
	}
	write("five")
	readable, reported = false, nil
	for range 2 {
		if now = now.Add(2 * time.Second); v.Get() != "four" || len(reported) != 1 {
			t.Errorf("while nothing can be read: %q with %v", v.Get(), reported)
		}
	}
	readable = true
	if now = now.Add(2 * time.Second); v.Get() != "five" || len(reported) != 1 {
		t.Errorf("as soon as it can: %q with %v", v.Get(), reported)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Second)
	if got := v.Get(); got != "five" || len(reported) != 2 {
		t.Errorf("without the file: %q, %v", got, reported)
	}
}
