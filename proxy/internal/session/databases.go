package session

import (
	"sync"
	"sync/atomic"
	"time"
)

// AskInterval is how often at most a database is asked whether code stored in it
// interferes with what the proxy sees of the session variable and of locks.
const AskInterval = 15 * time.Second

// keptDatabases is how many databases are remembered before those that were not
// asked lately are forgotten.
const keptDatabases = 256

// Databases remembers of each database one boolean: whether code stored in it names
// the session variable, or releases advisory locks. It is safe for concurrent use.
type Databases struct {
	now func() time.Time
	mu  sync.Mutex
	all map[string]*database
	// era counts what makes answers to questions under way out of date.
	era uint64
}

// NewDatabases knows no database. now is the clock, time.Now outside tests.
func NewDatabases(now func() time.Time) *Databases {
	return &Databases{now: now, all: map[string]*database{}}
}

// database is what is known of one.
type database struct {
	owner *Databases
	// interferes: sessions count as carrying what the variable holds, and none holds.
	interferes atomic.Bool
	schema     atomic.Bool // it has answered, so it has wirefence's functions
	asked      atomic.Int64
}

// find returns what is known of a database, by the name that it gives itself.
func (d *Databases) find(name string) *database {
	d.mu.Lock()
	defer d.mu.Unlock()
	if db := d.all[name]; db != nil {
		return db
	}
	if len(d.all) >= keptDatabases {
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

// Era is to be taken before a database is asked, and given to Learn with the answer.
func (d *Databases) Era() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.era
}

// Learn takes in the answer of a database, asked on a connection of the proxy's own.
func (d *Databases) Learn(name string, interferes bool, era uint64) {
	d.find(name).learn(interferes, era)
}

// Forget has each database asked again at its next login. Questions that are under way
// don't count.
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

// due reports whether a session in a database of this name should ask along with what
// else it asks, and notes that it does: the database is known to have the function.
func (d *Databases) due(name string) bool {
	d.mu.Lock()
	db := d.all[name]
	d.mu.Unlock()
	return db != nil && db.schema.Load() && db.due()
}

// due reports whether this session should ask, and notes that it does. Until there is a
// first answer each does.
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

// unask has the next session ask: this one's question has failed.
func (db *database) unask() { db.asked.Store(0) }

// learn takes in an answer. One to a question of a former era may be out of date: then it
// clears nobody, and the next login asks again.
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

// suspect notes that code which interferes may be stored: a text may just have done
// that, or the database gave no answer. The next login asks.
func (db *database) suspect() {
	db.owner.mu.Lock()
	defer db.owner.mu.Unlock()
	db.owner.era++
	db.interferes.Store(true)
	db.asked.Store(0)
}
