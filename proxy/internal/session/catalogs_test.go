package session

import (
	"testing"
	"time"
)

// TestTheCatalogIsBelievedForAWhile walks the cache of one database through its
// life with a clock of its own.
func TestTheCatalogIsBelievedForAWhile(t *testing.T) {
	now := time.Unix(1000, 0)
	caches := NewCatalogs(func() time.Time { return now })
	d := caches.database("app", "UTF8")
	known := func() bool { c, _ := d.get(); return c != nil }
	answer := func(insist bool, stamp string) {
		t.Helper()
		q, ok := d.ask(insist)
		if !ok {
			t.Fatal("the cache asks nothing")
		}
		d.look(&q, []byte(stamp))
		if q.whole {
			if err := d.store(q, []byte("snow\n.")); err != nil {
				t.Fatal(err)
			}
		}
	}

	if known() {
		t.Fatal("an empty cache knows something")
	}
	answer(false, "1")
	if !known() {
		t.Fatal("what was stored is not known")
	}
	if _, ok := d.ask(true); ok {
		t.Error("what is known is asked for again")
	}
	if _, ok := d.glance(); ok {
		t.Error("a fresh catalog is looked at")
	}

	now = now.Add(catalogGlance + time.Second)
	q, ok := d.glance()
	if !ok {
		t.Fatal("nobody is sent to look although it is time")
	}
	if _, ok := d.glance(); ok {
		t.Error("a second session is sent to look")
	}
	d.look(&q, []byte("1"))
	now = now.Add(CatalogTTL - time.Second)
	if !known() {
		t.Error("a look that found no change did not prolong")
	}

	now = now.Add(CatalogTTL)
	if known() {
		t.Fatal("an old catalog is believed")
	}
	answer(false, "2") // a look: the stamp has changed
	if known() {
		t.Fatal("a catalog with another stamp is believed")
	}
	answer(false, "2") // the whole
	if !known() {
		t.Fatal("the changed catalog was not taken in")
	}

	caches.invalidate("app")
	if known() {
		t.Fatal("an invalidated catalog is believed")
	}
	answer(false, "2")
	if !known() {
		t.Fatal("a look that found no change did not revive the catalog")
	}

	caches.invalidate("app")
	q, _ = d.ask(false)
	caches.invalidate("app") // while the answer is on its way
	d.look(&q, []byte("2"))
	if known() {
		t.Fatal("an answer from before the change is believed")
	}

	d.fail()
	if _, ok := d.ask(true); ok {
		t.Error("the catalog is asked for right after a failure")
	}
	now = now.Add(retryCatalog + time.Second)
	if _, ok := d.ask(false); !ok {
		t.Error("the catalog is never asked for again after a failure")
	}
}

// Forgetting makes the next session ask for the whole, although somebody just
// did or failed to; an answer to an earlier question doesn't count any more.
func TestForgetting(t *testing.T) {
	now := time.Unix(1000, 0)
	caches := NewCatalogs(func() time.Time { return now })
	d := caches.database("app", "UTF8")
	store := func(q question) {
		t.Helper()
		d.look(&q, []byte("1"))
		if err := d.store(q, []byte("snow\n.")); err != nil {
			t.Fatal(err)
		}
	}
	q, _ := d.ask(true)
	store(q)
	_, before := d.get()
	if before == 0 {
		t.Fatal("what was stored is not known")
	}
	caches.Forget()
	if c, _ := d.get(); c != nil || d.trusted.Load() {
		t.Error("what was forgotten is known")
	}
	late, ok := d.ask(true)
	if !ok || !late.whole {
		t.Fatalf("asked: %v, the whole: %v", ok, late.whole)
	}
	d.fail()
	caches.Forget()
	store(late)
	if c, _ := d.get(); c != nil {
		t.Error("an answer from before counts")
	}
	q, ok = d.ask(false)
	if !ok {
		t.Fatal("a failure is remembered")
	}
	store(q)
	if _, after := d.get(); after == before {
		t.Error("sessions can't tell the new catalog from the old one")
	}
}
