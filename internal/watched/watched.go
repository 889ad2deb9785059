// Package watched keeps a value that is loaded from files, such as a certificate, and loads
// it again when they change.
package watched

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Value is a value that is loaded from files. It is safe for concurrent use.
type Value[T any] struct {
	files  []string
	load   func() (T, error)
	failed func(error)
	now    func() time.Time

	mu    sync.Mutex
	value T
	stamp string // fingerprint of the files from which value was loaded
	bad   string // fingerprint of the files whose failure was reported last
	next  time.Time
}

// interval is the shortest time between two checks of the files.
const interval = time.Second

// New loads the value. Get loads it again if the files have changed. If that fails, the last
// good value stays, failed gets the error once for each change, and the next check tries again:
// the files may be good, and the process out of descriptors.
func New[T any](load func() (T, error), failed func(error), files ...string) (*Value[T], error) {
	v := &Value[T]{files: files, load: load, failed: failed, now: time.Now}
	stamp := v.fingerprint()
	value, err := load()
	if err != nil {
		return nil, err
	}
	v.value, v.stamp, v.next = value, stamp, v.now().Add(interval)
	return v, nil
}

// Get returns the value, which is at most a second old.
func (v *Value[T]) Get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now := v.now(); now.After(v.next) {
		v.next = now.Add(interval)
		if stamp := v.fingerprint(); stamp != v.stamp {
			if err := v.reload(stamp); err != nil && stamp != v.bad {
				v.bad = stamp
				v.failed(err)
			}
		}
	}
	return v.value
}

// Reload loads the value even if the files have not changed. If that fails, the last good value
// stays.
func (v *Value[T]) Reload() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	stamp := v.fingerprint()
	err := v.reload(stamp)
	if err != nil {
		v.bad = stamp // the caller knows
	}
	return err
}

func (v *Value[T]) reload(stamp string) error {
	value, err := v.load()
	if err != nil {
		return err
	}
	v.value, v.stamp, v.bad = value, stamp, ""
	return nil
}

// fingerprint differs between two states of the files.
func (v *Value[T]) fingerprint() string {
	var stamp string
	for _, name := range v.files {
		info, err := os.Stat(name)
		if err != nil {
			stamp += fmt.Sprintf("%t|", errors.Is(err, fs.ErrNotExist))
			continue
		}
		stamp += fmt.Sprintf("%d %d %v|", info.ModTime().UnixNano(), info.Size(), inode(info))
	}
	return stamp
}
