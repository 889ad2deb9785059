package session

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
)

// CatalogTTL is how long a catalog is believed: how long a function that
// somebody changed past the proxy may be judged by what it was. Changes that
// pass through the proxy are noticed at once.
const CatalogTTL = 15 * time.Second

// retryCatalog is how long after a failure the catalog isn't asked for again.
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

// database is the cache of one database.
type database struct {
	owner   *Catalogs
	name    string
	setters atomic.Bool // some function or trigger may set the session variable

	mu          sync.RWMutex
	catalog     *sqlscan.Catalog
	text        string
	generation  uint32 // changes when the content does
	valid       bool
	at          time.Time // when it was asked for
	failed      time.Time
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

func (d *database) fresh() bool { return d.valid && d.owner.now().Sub(d.at) <= CatalogTTL }

// wanted reports whether the catalog should be asked for: it isn't known, and
// the last question didn't fail a moment ago.
func (d *database) wanted() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return !d.fresh() && d.owner.now().Sub(d.failed) > retryCatalog
}

// question is what store wants back: the state of the cache when the catalog
// was asked for.
type question struct {
	at          time.Time
	invalidated uint32
}

func (d *database) ask() question {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return question{d.owner.now(), d.invalidated}
}

// store takes in the answer. It is dropped if the catalog was invalidated since
// the question.
func (d *database) store(q question, text []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
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
		d.setters.Store(catalog.HasSetters())
	}
	d.valid, d.at = true, q.at
	return nil
}

// fail notes that the catalog could not be had.
func (d *database) fail() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = d.owner.now()
}

func (d *database) invalidate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.valid = false
	d.invalidated++
}
