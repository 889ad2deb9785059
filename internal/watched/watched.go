// Package watched keeps what is made of files, such as a certificate, and makes
// it anew when they change.
package watched

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Value is what was made of files. It is safe for concurrent use.
type Value[T any] struct {
	files  []string
	load   func() (T, error)
	failed func(error)
	now    func() time.Time

	mu    sync.Mutex
	value T
	stamp string // of the files that value was made of
	bad   string // of those that were reported last
	next  time.Time
}

// interval is how often the files are looked at, at most.
const interval = time.Second

// New loads the value. Whenever it is asked for and the files have changed since,
// it is loaded again; if that fails, the last good value stays, failed is told
// why, once for each change, and the next look tries again: what failed may have
// been but the reading, for want of descriptors say.
func New[T any](load func() (T, error), failed func(error), files ...string) (*Value[T], error) {
	v := &Value[T]{files: files, load: load, failed: failed, now: time.Now}
	stamp := v.look()
	value, err := load()
	if err != nil {
		return nil, err
	}
	v.value, v.stamp, v.next = value, stamp, v.now().Add(interval)
	return v, nil
}

// Get returns the value as of at most a second ago.
func (v *Value[T]) Get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now := v.now(); now.After(v.next) {
		v.next = now.Add(interval)
		if stamp := v.look(); stamp != v.stamp {
			if err := v.reload(stamp); err != nil && stamp != v.bad {
				v.bad = stamp
				v.failed(err)
			}
		}
	}
	return v.value
}

// Reload loads the value now, changed or not. If that fails, the last good one
// stays.
func (v *Value[T]) Reload() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	stamp := v.look()
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

// look tells one state of the files from another.
func (v *Value[T]) look() string {
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
