package users

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/scram"
)

const secret = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="

func TestUserFiles(t *testing.T) {
	for _, c := range []struct{ text, user, want string }{
		{`"alice" "` + secret + `"`, "alice", "secret"},
		{"; a comment\n\n# another\n  \"alice\"\t\"" + secret + `" "what PgBouncer ignores"`, "alice", "secret"},
		{`"od""d" "pass""word"`, `od"d`, `password pass"word`},
		{`"alice" ""`, "alice", "unknown"},
		{`"alice" "x"`, "bob", "unknown"},
		{`"alice" "md50123456789abcdef0123456789abcdef"`, "alice", "password_encryption"},
		{`"alice" "md5 is a fine password"`, "alice", "password md5 is a fine password"},
		{`"alice" "SCRAM-SHA-256$4096:broken"`, "alice", "not a SCRAM-SHA-256 secret"},
		{`alice secret-word`, "alice", ":1: the line is not"},
		{"\n\"alice\" \"secret-word", "alice", ":2: the line is not"},
		{`"" "secret-word"`, "", ":1: the line is not"},
		{"\"a\" \"secret-word\"\n\"a\" \"secret-word\"", "a", ":2: user \"a\" is there twice"},
	} {
		got := lookUp(t, c.text, c.user)
		if !strings.Contains(got, c.want) || strings.Contains(got, "secret-word") {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// lookUp says what is found of a user in a file.
func lookUp(t *testing.T, text, user string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(name, func(error) {})
	if err != nil {
		return err.Error()
	}
	d, err := NewDirectory(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Lookup(t.Context(), user)
	switch {
	case errors.Is(err, ErrUnknown):
		return "unknown"
	case err != nil:
		return err.Error()
	case e.Password != "":
		return "password " + e.Password
	}
	return "secret"
}

// A user who doesn't exist has the same salt each time, as one who does.
// An unknown user is shown the iterations of most of those in the file.
func TestMockedUsersHaveTheIterationsOfKnownOnes(t *testing.T) {
	stronger := strings.Replace(secret, "$4096:", "$20000:", 1)
	for text, want := range map[string]int{
		"": scram.Iterations, `"a" "` + secret + `"`: 4096, `"a" "` + stronger + `"`: 20000,
		`"a" "` + secret + "\"\n\"b\" \"" + stronger + "\"\n\"c\" \"" + stronger + `"`: 20000,
		`"a" "in clear"` + "\n\"b\" \"" + stronger + `"`:                               4096,
	} {
		name := filepath.Join(t.TempDir(), "users.txt")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := OpenFile(name, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		d, err := NewDirectory(f, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Mock("unknown").Secret.Iterations; got != want {
			t.Errorf("%q: %d iterations, not %d", text, got, want)
		}
	}
}

func TestMockedUsersAreStable(t *testing.T) {
	d, err := NewDirectory(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := d.Mock("a").Secret, d.Mock("b").Secret
	if string(a.Salt) != string(d.Mock("a").Secret.Salt) || string(a.Salt) == string(b.Salt) {
		t.Error("the salts of users who don't exist tell them from others")
	}
	if want := (scram.Key{}); a.StoredKey != want || len(a.Salt) != 16 {
		t.Errorf("%d bytes of salt", len(a.Salt))
	}
}

// Nor can it be told who has a password in clear, whose salt is stored nowhere:
// it is the same after the file was read again.
func TestSaltsOfPasswordsInClearAreStable(t *testing.T) {
	name := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(name, []byte(`"alice" "open sesame"`), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(name, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDirectory(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		e, err := d.Lookup(t.Context(), "alice")
		if err != nil || string(e.Secret.Salt) != string(d.Mock("alice").Secret.Salt) || e.Secret.StoredKey == (scram.Key{}) {
			t.Errorf("%v, %v", e, err)
		}
		if err := d.Reload(); err != nil {
			t.Fatal(err)
		}
	}
}
