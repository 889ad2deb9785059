package session

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A pooler may have given the database another name than the one that the client
// came by.
func TestTheDatabaseNamesItself(t *testing.T) {
	s := begun(t, "")
	if got := s.ActualDatabase(); got != "at_home" {
		t.Errorf("the session is in %q", got)
	}
}

func TestFencesInStartupPackets(t *testing.T) {
	for _, c := range []struct {
		name   string
		params map[string]string
		sets   bool
	}{
		{"none", map[string]string{"user": "app", "application_name": "wirefence.token"}, false},
		{"-c", map[string]string{"options": "-c wirefence.token=orders=34"}, true},
		{"without a space", map[string]string{"options": "-cwork_mem=4MB -cWireFence.Token=orders=34"}, true},
		{"two dashes", map[string]string{"options": " --wirefence.token=orders=34 "}, true},
		{"behind other switches", map[string]string{"options": "-Fecwirefence.token=orders=34"}, true},
		{"escaped", map[string]string{"options": `-c\ wirefence\.to\ken=orders=34`}, true},
		{"by name", map[string]string{"Wirefence.Token": "orders=34"}, true},
		{"another setting", map[string]string{"options": "-c wirefence.reason=x"}, false},
		{"empty", map[string]string{"options": "-c wirefence.token= -c work_mem=4MB", "wirefence.token": ""}, false},
		{"empty at the end", map[string]string{"options": "-c wirefence.token="}, false},
	} {
		if got := setsFence(c.params); got != c.sets {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A client may let no statement take long. What the proxy asks is asked again without
// that, and a session of which the proxy learns nothing is told so.
func TestALoginOfAClientWithoutPatience(t *testing.T) {
	for _, c := range []struct {
		name    string
		fails   int // so many answers in a row
		pooling Pooling
	}{
		{"once", 1, PoolingUnknown},
		{"often", 5, PoolingUnknown},
		{"always, and it may be pooled", 1000, PoolingUnknown},
		{"always, and it is not pooled", 1000, PoolingSession},
	} {
		t.Run(c.name, func(t *testing.T) {
			events := &noted{}
			s := greeted(Config{Pooling: c.pooling}, events)
			var out Out
			for n := 0; !s.LoggedIn() && s.Fatal() == nil; n++ {
				sent := bytes.Clone(s.TakeToServer())
				if n > 30 || len(sent) == 0 {
					t.Fatal("the login does not end")
				}
				if again := strings.Contains(string(sent), noTimeoutSQL); again != (n > 0 && n <= min(c.fails, 5)) && c.fails <= 5 {
					t.Errorf("question %d: %q", n, sent)
				}
				switch {
				case n < c.fails:
					s.FromServer(slices.Concat(fails("57014"), ready("I")), &out)
				case bytes.Contains(sent, []byte(trimmed(loginSQL))):
					s.FromServer(simply(row("", "usable", "7", hexadecimal("at_home"))), &out)
				default:
					s.FromServer(bytes.Replace(answers(sent, nil), noRefusal, row("f"), 1), &out)
				}
			}
			if s.Fatal() != nil || len(events.refused) > 0 {
				t.Errorf("refused: %v, %v", s.Fatal(), events.refused)
			}
		})
	}
}

// A database is asked until its first answer, and then once in a while or after a reload.
func TestDatabasesAreAskedOnceInAWhile(t *testing.T) {
	at := time.Now()
	d := NewDatabases(func() time.Time { return at })
	db := d.find("app")
	asks := func(want bool) {
		t.Helper()
		if got := db.due(); got != want {
			t.Errorf("a login asks: %v", got)
		}
	}
	asks(true)
	asks(true) // there is no answer yet
	d.Learn("app", true, at)
	asks(false)
	at = at.Add(AskInterval)
	asks(true)
	d.Learn("app", false, at)
	asks(false)
	asked := at
	at = at.Add(time.Second)
	d.Forget()
	d.Learn("app", false, asked) // this answer was under way
	asks(true)
	later := at.Add(time.Millisecond)
	d.Learn("app", true, later)
	d.Learn("app", false, asked) // and came late
	if !db.unlocks.Load() {
		t.Error("an earlier question's answer counts")
	}
}

// A session learns what its database is asked later on, however many others there were in between.
func TestASessionKeepsItsDatabase(t *testing.T) {
	at := time.Now()
	databases := NewDatabases(func() time.Time { return at })
	kept := databases.join("app")
	for i := range 2 * maxDatabases {
		at = at.Add(AskInterval)
		databases.find(fmt.Sprint(i)).due()
	}
	if databases.find("app") != kept || len(databases.all) > maxDatabases+1 {
		t.Errorf("another record, of %d", len(databases.all))
	}
	kept.leave()
	for i := range 2 * maxDatabases {
		at = at.Add(AskInterval)
		databases.find(fmt.Sprint("later ", i)).due()
	}
	if databases.all["app"] != nil {
		t.Error("the record of a database that nobody uses stays")
	}
}

// A login asks one question, and once in a while another one, about stored code. Where that
// fails, the database counts as one whose code unlocks until a later login asks again.
func TestALoginIsOneRoundTrip(t *testing.T) {
	at := time.Now()
	databases := NewDatabases(func() time.Time { return at })
	failure := slices.Concat(fails("42501"), ready("I"))
	plain := row("", "usable", "7", hexadecimal("app"))
	login := func(t *testing.T, said ...[]byte) {
		t.Helper()
		s, out := greetedIn(databases, "app"), Out{}
		for n, rows := range said {
			sent := bytes.Clone(s.TakeToServer())
			if len(sent) == 0 {
				t.Fatalf("the login ends before answer %d", n)
			}
			if rows[0] == wire.DataRow {
				rows = bytes.Replace(answers(sent, nil), noRefusal, rows, 1)
			}
			s.FromServer(rows, &out)
		}
		if !s.LoggedIn() {
			t.Fatalf("the login does not end behind %d answers: %q", len(said), s.TakeToServer())
		}
	}
	unlocks := func(t *testing.T, want bool) {
		t.Helper()
		if got := databases.find("app").unlocks.Load(); got != want {
			t.Errorf("functions unlock: %v", got)
		}
	}
	login(t, plain, row("f")) // the first in the database
	login(t, plain)
	at = at.Add(AskInterval)
	login(t, plain, row("t"))
	unlocks(t, true)
	login(t, plain)
	at = at.Add(AskInterval)
	login(t, plain, row("f"))
	unlocks(t, false)
	at = at.Add(AskInterval)
	login(t, plain, failure)
	unlocks(t, true)
	login(t, plain, row("f"))
	unlocks(t, false)
	at = at.Add(AskInterval)
	login(t, slices.Concat(fails("57014"), ready("I")), simply(plain), row("f"))
	login(t, plain)
}

// simply is a row as the answer to a simple query.
func simply(row []byte) []byte { return slices.Concat(done("SET"), row, done("SELECT 1"), ready("I")) }
