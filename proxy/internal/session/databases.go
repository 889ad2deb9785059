package session

import (
	_ "embed"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// UnlocksSQL asks whether a function of the database names one that releases advisory locks,
// which are what its sessions hold. A SQL body has functions by number.
//
//go:embed unlocks.sql
var UnlocksSQL string

// AskInterval is the least time between two such questions to a database.
const AskInterval = 15 * time.Second

// maxDatabases is how many databases are remembered before those are dropped that have no
// session and were not asked lately.
const maxDatabases = 256

// Databases remembers what the sessions of each database share. It is safe for concurrent use.
type Databases struct {
	now func() time.Time
	mu  sync.Mutex
	all map[string]*database
	// forgotten is when Forget was called last.
	forgotten time.Time
	// began is when clock has been 0.
	began time.Time
	// holding has a value when a session has begun to hold.
	holding chan struct{}
}

// NewDatabases returns an empty Databases. now is the clock, time.Now outside tests.
func NewDatabases(now func() time.Time) *Databases {
	return &Databases{now: now, began: now(), holding: make(chan struct{}, 1), all: map[string]*database{}}
}

// clock returns a moment as a number, by the monotonic clock.
func (d *Databases) clock(t time.Time) time.Duration { return t.Sub(d.began) }

// database is what the sessions of one database share.
type database struct {
	owner   *Databases
	name    string       // current_database(); "" for sessions whose database isn't known
	unlocks atomic.Bool  // a function of it may release advisory locks, so no session takes a hold
	schema  atomic.Bool  // it has wirefence's functions
	citus   atomic.Bool  // it is at a node of Citus
	sharded atomic.Bool  // it is several, behind a router
	asked   atomic.Int64 // when UnlocksSQL was asked last, in Unix nanoseconds; 0 for never
	learned atomic.Bool  // it was answered once
	sent    time.Time    // when the question was sent whose answer is in unlocks; guarded by owner.mu

	// lasting says that holds last: the last question whether one is wanted was answered, by
	// the server where sessions hold.
	lasting atomic.Bool
	locks   map[lockKey]*heldLock // that sessions hold; guarded by owner.mu

	sessions int // in it; guarded by owner.mu
}

// join returns the record of a session's database, which stays until the session leaves.
func (d *Databases) join(name string) *database {
	d.mu.Lock()
	defer d.mu.Unlock()
	db := d.record(name)
	db.sessions++
	return db
}

func (db *database) leave() {
	db.owner.mu.Lock()
	defer db.owner.mu.Unlock()
	db.sessions--
}

// find returns the record of a database, by its own name for itself.
func (d *Databases) find(name string) *database {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.record(name)
}

func (d *Databases) record(name string) *database {
	if db := d.all[name]; db != nil {
		return db
	}
	if len(d.all) >= maxDatabases {
		for name, db := range d.all {
			if db.sessions == 0 && !db.recent(4*AskInterval) {
				delete(d.all, name)
			}
		}
	}
	db := &database{owner: d, name: name}
	d.all[name] = db
	return db
}

// Learn records a database's answer to UnlocksSQL, which the proxy's own connection sent at this
// time, and that it has wirefence's functions.
func (d *Databases) Learn(name string, unlocks bool, sent time.Time) {
	db := d.find(name)
	db.schema.Store(true)
	db.learn(unlocks, sent)
}

// SetSharded records whether what bears this name is several databases behind a router, where a
// check may be answered by another one than the write. It reports whether that is new.
func (d *Databases) SetSharded(name string, sharded bool) bool {
	return d.find(name).sharded.Swap(sharded) != sharded
}

// Forget has each database asked again at its next login.
func (d *Databases) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgotten = d.now()
	for _, db := range d.all {
		db.asked.Store(0)
	}
}

func (db *database) recent(within time.Duration) bool {
	at := db.asked.Load()
	return at != 0 && db.owner.now().Sub(time.Unix(0, at)) < within
}

// due reports whether this session should ask, and marks the database as asked. Each
// session asks until the first answer.
func (db *database) due() bool {
	at := db.asked.Load()
	now := db.owner.now()
	if !db.learned.Load() {
		db.asked.Store(now.UnixNano())
		return true
	}
	if at != 0 && now.Sub(time.Unix(0, at)) < AskInterval {
		return false
	}
	return db.asked.CompareAndSwap(at, now.UnixNano())
}

// learn records an answer to a question that was sent at this time, unless a later question was
// answered before. One that was sent before Forget may not know of what that was called for.
func (db *database) learn(unlocks bool, sent time.Time) {
	db.owner.mu.Lock()
	defer db.owner.mu.Unlock()
	if sent.Before(db.sent) {
		return
	}
	db.sent = sent
	db.learned.Store(true)
	db.unlocks.Store(unlocks)
	if sent.After(db.owner.forgotten) {
		db.asked.Store(db.owner.now().UnixNano())
	}
}

// lockKey is an advisory lock of a server. Sessions of one database may be at several:
// behind a promotion at the old primary and at the new one.
type lockKey struct {
	server string // by wirefence.identity
	key    int64
}

// heldLock is the lock of a resource that sessions of one database hold.
type heldLock struct {
	db       *database
	key      lockKey
	sessions int // that hold it; guarded by Databases.mu
	// proven is when the last question was sent whose answer was that nobody wants it, by
	// Databases.clock. wanted says that the last answer was the opposite.
	proven duration
	wanted atomic.Bool
}

// duration is an atomic time.Duration.
type duration struct{ atomic.Int64 }

func (d *duration) Load() time.Duration { return time.Duration(d.Int64.Load()) }

// retain records that a session holds the locks of these keys, and appends them to dst.
func (db *database) retain(keys []lockKey, dst []*heldLock) []*heldLock {
	db.owner.mu.Lock()
	defer db.owner.mu.Unlock()
	if db.locks == nil {
		db.locks = map[lockKey]*heldLock{}
	}
	for _, key := range keys {
		lock := db.locks[key]
		if lock == nil {
			lock = &heldLock{db: db, key: key}
			lock.proven.Store(math.MinInt64)
			db.locks[key] = lock
			select {
			case db.owner.holding <- struct{}{}:
			default:
			}
		}
		lock.sessions++
		dst = append(dst, lock)
	}
	return dst
}

// release records that a session doesn't hold these locks any more.
func release(locks []*heldLock) {
	if len(locks) == 0 {
		return
	}
	db := locks[0].db
	db.owner.mu.Lock()
	defer db.owner.mu.Unlock()
	for _, lock := range locks {
		if lock.sessions--; lock.sessions == 0 {
			delete(db.locks, lock.key)
		}
	}
}

// Holding returns a channel that has a value when sessions have begun to hold.
func (d *Databases) Holding() <-chan struct{} { return d.holding }

// Held appends the keys of the locks that sessions of a database hold to dst.
func (d *Databases) Held(name string, dst []int64) []int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if db := d.all[name]; db != nil {
		for lock := range db.locks {
			dst = append(dst, lock.key)
		}
	}
	return dst
}

// SetLasting records whether the sessions of a database can expect their holds to last: a
// connection can be asked whether one is wanted.
func (d *Databases) SetLasting(name string, lasting bool) { d.find(name).lasting.Store(lasting) }

// Answered records which of the held locks are wanted by a takeover, of those that this
// server was asked for by a question sent at this time. It reports whether any has become
// so, and whether sessions hold, and none of them at this server.
func (d *Databases) Answered(name, server string, asked, wanted []int64, sent time.Time) (news, elsewhere bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	db := d.all[name]
	if db == nil {
		return false, false
	}
	for _, key := range asked {
		if lock := db.locks[lockKey{server, key}]; lock != nil {
			isWanted := slices.Contains(wanted, key)
			news = lock.wanted.Swap(isWanted) != isWanted && isWanted || news
			if !isWanted {
				lock.proven.Store(int64(d.clock(sent)))
			}
		}
	}
	for lock := range db.locks {
		if elsewhere = lock.server != server; !elsewhere {
			break
		}
	}
	db.lasting.Store(!elsewhere)
	return news, elsewhere
}
