package session

import (
	"sync"
	"sync/atomic"
	"time"
)

// AskInterval is the least time between two questions to a database whether its stored
// code interferes: whether it sets the session variable or releases advisory locks.
const AskInterval = 15 * time.Second

// maxDatabases is how many databases are remembered before those are dropped that were
// not asked lately.
const maxDatabases = 256

// Databases remembers one boolean for each database: whether its stored code interferes.
// It is safe for concurrent use.
type Databases struct {
	now func() time.Time
	mu  sync.Mutex
	all map[string]*database
	// era counts the events that outdate answers to questions under way.
	era uint64
}

// NewDatabases returns an empty Databases. now is the clock, time.Now outside tests.
func NewDatabases(now func() time.Time) *Databases {
	return &Databases{now: now, all: map[string]*database{}}
}

// database is what the sessions of one database share.
type database struct {
	owner *Databases
	// interferes says that stored code interferes: each session's variable may hold a
	// fence, and no session takes a hold.
	interferes atomic.Bool
	schema     atomic.Bool  // it has answered once, so it has wirefence's functions
	asked      atomic.Int64 // when it was asked last, in Unix nanoseconds; 0 for never
}

// find returns the record of a database, by its own name for itself.
func (d *Databases) find(name string) *database {
	d.mu.Lock()
	defer d.mu.Unlock()
	if db := d.all[name]; db != nil {
		return db
	}
	if len(d.all) >= maxDatabases {
		for name, db := range d.all {
			if !db.recent(4 * AskInterval) {
				delete(d.all, name)
			}
		}
	}
	db := &database{owner: d}
	d.all[name] = db
	return db
}

// Era returns the era. Call it before asking a database, and pass it to Learn with the
// answer.
func (d *Databases) Era() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.era
}

// Learn records a database's answer that came on the proxy's own connection.
func (d *Databases) Learn(name string, interferes bool, era uint64) {
	d.find(name).learn(interferes, era)
}

// Forget has each database asked again at its next login. It outdates questions that are
// under way.
func (d *Databases) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.era++
	for _, db := range d.all {
		db.asked.Store(0)
	}
}

func (db *database) recent(within time.Duration) bool {
	at := db.asked.Load()
	return at != 0 && db.owner.now().Sub(time.Unix(0, at)) < within
}

// dueWithLogin reports whether a login to a database of this name should ask together with
// its other question, and marks it as asked. It does only if the database is known to have
// the function.
func (d *Databases) dueWithLogin(name string) bool {
	d.mu.Lock()
	db := d.all[name]
	d.mu.Unlock()
	return db != nil && db.schema.Load() && db.due()
}

// due reports whether this session should ask, and marks the database as asked. Each
// session asks until the first answer.
func (db *database) due() bool {
	at := db.asked.Load()
	now := db.owner.now()
	if !db.schema.Load() {
		db.asked.Store(now.UnixNano())
		return true
	}
	if at != 0 && now.Sub(time.Unix(0, at)) < AskInterval {
		return false
	}
	return db.asked.CompareAndSwap(at, now.UnixNano())
}

// resetAsked has the next session ask, after a question has failed.
func (db *database) resetAsked() { db.asked.Store(0) }

// learn records an answer. An answer from a former era may be outdated: it can't clear
// interferes, and the next login asks again.
func (db *database) learn(interferes bool, era uint64) {
	db.owner.mu.Lock()
	defer db.owner.mu.Unlock()
	db.schema.Store(true)
	if era != db.owner.era {
		if interferes {
			db.interferes.Store(true)
		}
		db.asked.Store(0)
		return
	}
	db.interferes.Store(interferes)
	db.asked.Store(db.owner.now().UnixNano())
}

// suspect sets interferes, since a text may have stored such code, or the database gave no
// answer. The next login asks.
func (db *database) suspect() {
	db.owner.mu.Lock()
	defer db.owner.mu.Unlock()
	db.owner.era++
	db.interferes.Store(true)
	db.asked.Store(0)
}
