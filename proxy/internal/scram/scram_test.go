package scram

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The example of RFC 7677, section 3.
func TestExampleOfTheRFC(t *testing.T) {
	c, ok := NewClient(Credentials{Password: "pencil"}, []string{Mechanism}, nil)
	if !ok {
		t.Fatal("no mechanism")
	}
	if _, err := c.First(); err != nil {
		t.Fatal(err)
	}
	c.nonce, c.bare = "rOprNGfwEbeRWgbNEkqO", "n=user,r=rOprNGfwEbeRWgbNEkqO"
	const nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	final, err := c.Next("r=" + nonce + ",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
	if want := "c=biws,r=" + nonce + ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="; err != nil || final != want {
		t.Errorf("the final message is %q, %v; want %q", final, err, want)
	}
	if err := c.Verify("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="); err != nil {
		t.Error(err)
	}
	if err := c.Verify("v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="); !errors.Is(err, ErrSignature) {
		t.Errorf("another signature: %v", err)
	}
}

// login lets a client log in to a server. change may alter what is said.
func login(c Credentials, secret *Secret, unknown bool, mine, theirs []byte, change func(step int, text string) string) (key Key, err error) {
	if change == nil {
		change = func(_ int, text string) string { return text }
	}
	s := NewServer(secret, unknown, theirs)
	client, ok := NewClient(c, s.Mechanisms(), mine)
	if !ok {
		return key, errors.New("no mechanism")
	}
	first, err := client.First()
	if err != nil {
		return key, err
	}
	answer, err := s.First(client.Mechanism(), change(0, first))
	if err != nil {
		return key, err
	}
	final, err := client.Next(change(1, answer))
	if err != nil {
		return key, err
	}
	signature, key, err := s.Final(change(2, final))
	if err != nil {
		return key, err
	}
	return key, client.Verify(change(3, signature))
}

func secretOf(t testing.TB, password string) *Secret {
	t.Helper()
	salt, err := nonce() // another each time
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSecret(password, []byte(salt))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What a server learns as a client logs in serves to log in elsewhere, where the
// same secret is kept, and nowhere else.
func TestLearntKeyLogsIn(t *testing.T) {
	secret := secretOf(t, "pencil")
	binding := []byte("the hash of a certificate")
	key, err := login(Credentials{Password: "pencil"}, secret, false, binding, binding, nil)
	if err != nil {
		t.Fatal(err)
	}
	learnt := Credentials{ClientKey: key, Secret: secret}
	other := []byte("another certificate")
	if _, err := login(learnt, secret, false, other, other, nil); err != nil {
		t.Errorf("with the learnt key: %v", err)
	}
	if _, err := login(learnt, secretOf(t, "pencil"), false, nil, nil, nil); !errors.Is(err, ErrOtherSecret) {
		t.Errorf("with the same password and another salt: %v", err)
	}
	same := *secret
	same.StoredKey[0]++
	if _, err := login(learnt, &same, false, nil, nil, nil); !errors.Is(err, ErrWrongPassword) {
		t.Errorf("with another key: %v", err)
	}
}

func TestLoginsThatFail(t *testing.T) {
	secret := secretOf(t, "pencil")
	pencil := Credentials{Password: "pencil"}
	a, b := []byte("a"), []byte("b")
	at := func(step int, f func(string) string) func(int, string) string {
		return func(s int, text string) string {
			if s == step {
				return f(text)
			}
			return text
		}
	}
	cut := func(text string) string { return text[:len(text)-5] }
	for _, c := range []struct {
		name         string
		credentials  Credentials
		unknown      bool
		mine, theirs []byte
		change       func(int, string) string
		want         error
	}{
		{"a wrong password", Credentials{Password: "Pencil"}, false, nil, nil, nil, ErrWrongPassword},
		{"a user who doesn't exist", pencil, true, nil, nil, nil, ErrWrongPassword},
		{"another end of the channel", pencil, false, a, b, nil, ErrBinding},
		{"a downgrade", pencil, false, nil, a, at(0, func(s string) string { return "y" + s[1:] }), ErrDowngrade},
		{"binding where there is none", pencil, false, nil, nil, at(0, func(s string) string { return "p=tls-server-end-point" + s[1:] }), ErrUnsupportedBinding},
		{"another type of binding", pencil, false, a, a, at(0, func(s string) string { return strings.Replace(s, "tls-server-end-point", "tls-unique", 1) }), ErrUnsupportedBinding},
		{"a changed header", pencil, false, nil, nil, at(0, func(s string) string { return "y" + s[1:] }), ErrBinding},
		{"an authorization identity", pencil, false, nil, nil, at(0, func(s string) string { return "n,a=root" + s[2:] }), ErrMalformed},
		{"an extension", pencil, false, nil, nil, at(0, func(s string) string { return "n,,m=x," + s[3:] }), ErrMalformed},
		{"an empty message", pencil, false, nil, nil, at(0, func(string) string { return "" }), ErrMalformed},
		{"another nonce", pencil, false, nil, nil, at(1, func(s string) string { return "r=x" + s[2:] }), ErrMalformed},
		{"no salt", pencil, false, nil, nil, at(1, func(s string) string { return strings.Split(s, ",")[0] }), ErrMalformed},
		{"no iterations", pencil, false, nil, nil, at(1, cut), ErrMalformed},
		{"endless iterations", pencil, false, nil, nil, at(1, func(s string) string { return s + "000000" }), ErrMalformed},
		{"half a proof", pencil, false, nil, nil, at(2, cut), ErrMalformed},
		{"no proof", pencil, false, nil, nil, at(2, func(s string) string { return s[:strings.Index(s, ",p=")] }), ErrMalformed},
		{"half a signature", pencil, false, nil, nil, at(3, cut), ErrMalformed},
		{"an error in the place of a signature", pencil, false, nil, nil, at(3, func(string) string { return "e=other-error" }), ErrMalformed},
	} {
		if _, err := login(c.credentials, secret, c.unknown, c.mine, c.theirs, c.change); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestSecrets(t *testing.T) {
	s := secretOf(t, "pencil")
	if out := fmt.Sprintf("%v %+v %#v", s, s, s); strings.Contains(out, "Key") {
		t.Errorf("a secret is formatted as %s", out)
	}
	const good = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
	if got, err := ParseSecret(good); err != nil || got.Iterations != 4096 || len(got.Salt) != 16 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{
		"", "md5abc", "SCRAM-SHA-256", "SCRAM-SHA-256$", "SCRAM-SHA-256$4096:xx$a:b", strings.Replace(good, "4096", "0", 1),
		strings.Replace(good, "4096", "99999999999", 1), strings.Replace(good, "W22", "?", 1), good[:len(good)-4], strings.Replace(good, "$WG5d", "$", 1),
	} {
		if _, err := ParseSecret(bad); !errors.Is(err, ErrNotScram) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// RFC 5929 names the hash by the certificate's signature.
func TestEndPointFollowsTheSignature(t *testing.T) {
	for algorithm, size := range map[x509.SignatureAlgorithm]int{
		x509.SHA1WithRSA: 32, x509.SHA256WithRSA: 32, x509.ECDSAWithSHA384: 48, x509.SHA512WithRSAPSS: 64, x509.PureEd25519: 0,
	} {
		if got := EndPoint(&x509.Certificate{SignatureAlgorithm: algorithm, Raw: []byte("x")}); len(got) != size {
			t.Errorf("%s: %d bytes, want %d", algorithm, len(got), size)
		}
	}
}

// Whatever the client says, the server neither panics nor lets it in.
func FuzzServer(f *testing.F) {
	secret := secretOf(f, "pencil")
	f.Add(Mechanism, "n,,n=,r=abc", "c=biws,r=abc,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
	f.Add(MechanismPlus, "p=tls-server-end-point,,n=,r=abc", "c=cD10bHMtc2VydmVyLWVuZC1wb2ludCws,r=abc,p=")
	f.Fuzz(func(t *testing.T, mechanism, first, final string) {
		s := NewServer(secret, false, []byte("binding"))
		if _, err := s.First(mechanism, first); err != nil {
			return
		}
		if _, _, err := s.Final(final); err == nil {
			t.Error("a client that knows no password is let in")
		}
	})
}

// Whatever the server says, the client doesn't panic, nor believe it.
func FuzzClient(f *testing.F) {
	f.Add("r=,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
	f.Fuzz(func(t *testing.T, first, final string) {
		secret := &Secret{Iterations: 4096, Salt: []byte("salt")}
		secret.ServerKey[0] = 1
		c, _ := NewClient(Credentials{Secret: secret}, []string{Mechanism}, nil)
		if _, err := c.First(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Next(strings.Replace(first, "r=", "r="+c.nonce, 1)); err != nil {
			return
		}
		if c.Verify(final) == nil {
			t.Error("a server that knows no secret is believed")
		}
	})
}

// Keys are made once of the same password, salt and count, and of no two alike.
func TestKeysAreRemembered(t *testing.T) {
	const costly = 2_000_000
	client, server, err := keys("pencil", []byte("salt"), costly)
	if err != nil {
		t.Fatal(err)
	}
	// So many derivations would take minutes.
	for range 1000 {
		again, other, err := keys("pencil", []byte("salt"), costly)
		if err != nil || again != client || other != server {
			t.Fatalf("other keys, %v", err)
		}
	}
	for _, c := range []struct {
		password, salt string
		iterations     int
	}{{"Pencil", "salt", 4096}, {"pencil", "salt ", 4096}, {"pencil", "salt", 4097}, {"pencil", "salt", 4096}, {"73616c74 pencil", "", 4096}} {
		other, _, err := keys(c.password, []byte(c.salt), c.iterations)
		if err != nil || other == client {
			t.Errorf("%+v: the same key, %v", c, err)
		}
	}
	for i := range 2 * maxCachedKeys {
		derivedKeys.put(sha256.Sum256([]byte{byte(i), byte(i >> 8)}), [2]Key{})
	}
	if n := len(derivedKeys.pairs); n > maxCachedKeys {
		t.Errorf("%d pairs are kept", n)
	}
}
