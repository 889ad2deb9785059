package session

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
)

// CatalogTTL is how long a catalog is believed without another look: how long a
// function that somebody changed past the proxy may be judged by what it was.
// Changes that pass through the proxy are noticed at once. A busy database is
// looked at more often, ahead of some client's message, so that nobody waits.
const (
	CatalogTTL    = 15 * time.Second
	catalogGlance = CatalogTTL / 2
)

// retryCatalog is how long after a failure the catalog isn't asked for again,
// and how long one session leaves it to another to ask.
const retryCatalog = 5 * time.Second

// Catalogs caches, for each database, what is known of its functions and views.
// It is safe for concurrent use.
type Catalogs struct {
	now func() time.Time
	mu  sync.Mutex
	all map[catalogKey]*database
}

// catalogKey also tells encodings apart: names are compared byte by byte, as
// the client writes them.
type catalogKey struct{ database, encoding string }

// NewCatalogs makes an empty cache. now is the clock, time.Now outside tests.
func NewCatalogs(now func() time.Time) *Catalogs {
	return &Catalogs{now: now, all: map[catalogKey]*database{}}
}

func (c *Catalogs) database(name, encoding string) *database {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := catalogKey{name, encoding}
	d := c.all[key]
	if d == nil {
		d = &database{owner: c, name: name}
		c.all[key] = d
	}
	return d
}

// invalidate forgets what is known of a database, in every encoding, since a
// function or a view changed.
func (c *Catalogs) invalidate(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, d := range c.all {
		if key.database == name {
			d.invalidate()
		}
	}
}

// Forget drops what is known of every database, and what has failed: each is
// read anew, in whole, before the next verdict that needs it.
func (c *Catalogs) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.all {
		d.forget()
	}
}

// database is the cache of one database.
type database struct {
	owner   *Catalogs
	name    string
	schema  atomic.Bool // fences can be checked
	setters atomic.Bool // some function may set the session variable
	trusted atomic.Bool // nothing is known to have changed since the catalog was read
	reads   atomic.Bool // some resource has its reads checked
	changes atomic.Uint32

	mu          sync.RWMutex
	catalog     *sqlscan.Catalog
	text        string
	stamp       string // of the catalog
	generation  uint32 // changes when the content does
	valid       bool
	changed     bool      // a look has shown another stamp
	at          time.Time // when it was last looked at
	failed      time.Time
	claimed     time.Time // when a session last went to look
	invalidated uint32
}

// get returns the catalog and the number of its content, or nil if it isn't
// known or is too old to be believed.
func (d *database) get() (*sqlscan.Catalog, uint32) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if !d.fresh() {
		return nil, 0
	}
	return d.catalog, d.generation
}

func (d *database) age(since time.Time) time.Duration { return d.owner.now().Sub(since) }

func (d *database) fresh() bool { return d.valid && d.age(d.at) <= CatalogTTL }

// question is what a session asks: a look at the stamp, or the whole catalog
// too. It remembers the state of the cache at that time.
type question struct {
	whole       bool
	at          time.Time
	invalidated uint32
	stamp       string // the first answer
}

// ask returns what a session should ask before it reads the catalog. ok is
// false if there is nothing to ask: the catalog is known, or can't be had, or,
// unless the session insists, another session is just fetching it.
func (d *database) ask(insist bool) (q question, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fresh() || d.age(d.failed) <= retryCatalog {
		return q, false
	}
	q = question{d.catalog == nil || d.changed, d.owner.now(), d.invalidated, ""}
	if q.whole && !insist && d.age(d.claimed) <= retryCatalog {
		return q, false
	}
	d.claimed = q.at
	return q, true
}

// glance returns a question that one session should put for all, since the
// catalog, though still believed, is due for a look.
func (d *database) glance() (q question, ok bool) {
	d.mu.RLock()
	due := d.valid && d.age(d.at) > catalogGlance && d.age(d.claimed) > retryCatalog
	d.mu.RUnlock()
	if !due {
		return q, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.valid || d.age(d.claimed) <= retryCatalog {
		return q, false
	}
	d.claimed = d.owner.now()
	return question{false, d.claimed, d.invalidated, ""}, true
}

// look takes in the stamp. Where nothing has changed, the catalog is good for
// another while.
func (d *database) look(q *question, stamp []byte) {
	q.stamp = string(stamp)
	if q.whole {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claimed = time.Time{}
	switch {
	case d.stamp != q.stamp:
		d.changed = true
		d.distrust()
	case d.invalidated == q.invalidated:
		d.valid, d.at = true, q.at
		d.trusted.Store(true)
	}
}

// distrust makes every session ask what it carries: a function may be there
// that sets the variable, and may have done so unseen.
func (d *database) distrust() {
	d.valid = false
	d.trusted.Store(false)
	d.changes.Add(1)
}

// store takes in the whole catalog. It is dropped if it was invalidated since
// the question.
func (d *database) store(q question, text []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claimed = time.Time{}
	if d.invalidated != q.invalidated {
		return nil
	}
	if d.catalog == nil || d.text != string(text) {
		catalog, err := sqlscan.ParseCatalog(text)
		if err != nil {
			d.failed = d.owner.now()
			return err
		}
		d.catalog, d.text = catalog, string(text)
		d.generation++
		d.schema.Store(catalog.HasSchema())
		d.setters.Store(catalog.HasSetters())
		d.reads.Store(catalog.ChecksReads())
	}
	d.valid, d.changed, d.at, d.stamp = true, false, q.at, q.stamp
	d.trusted.Store(true)
	return nil
}

// fail notes that the catalog could not be had.
func (d *database) fail() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed, d.claimed = d.owner.now(), time.Time{}
}

func (d *database) invalidate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.distrust()
	d.invalidated++
}

func (d *database) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.distrust()
	d.invalidated++
	d.catalog, d.text, d.stamp, d.changed = nil, "", "", false
	d.failed, d.claimed = time.Time{}, time.Time{}
}
