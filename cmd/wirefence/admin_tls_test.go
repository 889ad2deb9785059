package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/stack"
)

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTLSOnTheAdminListener(t *testing.T) {
	t.Parallel()
	issued := authority.New(t)
	first, second := issued.Issue(t, "one.internal", "127.0.0.1"), issued.Issue(t, "two.internal", "127.0.0.1")
	cert, key := filepath.Join(t.TempDir(), "admin.crt"), filepath.Join(t.TempDir(), "admin.key")
	install := func(p authority.Pair) {
		copyFile(t, p.KeyFile, key)
		copyFile(t, p.CertFile, cert)
	}
	install(first)
	url := database(t, true)
	p := startProxy(t, url, "WIREFENCE_ADMIN_TLS_CERT_FILE="+cert, "WIREFENCE_ADMIN_TLS_KEY_FILE="+key)
	// served returns whose certificate is shown to a new connection, over which path was asked.
	served := func(path string) string {
		t.Helper()
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: issued.Pool()}, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
		response, err := client.Get("https://" + p.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
			t.Errorf("%s: %s %s, %v", path, response.Proto, response.Status, err)
		}
		return response.TLS.PeerCertificates[0].Subject.CommonName
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/v1/resources"} {
		if name := served(path); name != "one.internal" {
			t.Errorf("%s: %s", path, name)
		}
	}
	if status, body := get(t, "http://"+p.admin+"/v1/resources"); status != http.StatusBadRequest {
		t.Errorf("without TLS: %d %s", status, body)
	}
	wirefence(t, []string{"WIREFENCE_ADMIN_LISTEN=" + p.admin}, "status", "--ready").expect(t, 0)
	wirefence(t, append(issuer(url), "WIREFENCE_ADMIN_LISTEN="+p.admin), "doctor").says(t, "the proxy says that it is ready")
	install(second)
	stack.Eventually(t, "another certificate is served without being told", func() bool { return served("/livez") == "two.internal" })
	install(first)
	p.signal(t, syscall.SIGHUP)
	p.stderr.Await(t, `"what":["admin TLS certificate"]`)
	if name := served("/livez"); name != "one.internal" {
		t.Errorf("after a reload: %s", name)
	}
	copyFile(t, second.KeyFile, key)
	p.signal(t, syscall.SIGHUP)
	p.stderr.Await(t, "reloading the admin TLS certificate")
	if name := served("/livez"); name != "one.internal" {
		t.Errorf("with a key that doesn't fit: %s", name)
	}
	if log := p.stderr.String(); strings.Contains(log, "TLS handshake error") {
		t.Errorf("a request without TLS is worth no line:\n%s", log)
	}
}

func TestTheAdminListenersCertificateIsRead(t *testing.T) {
	t.Parallel()
	pair := authority.New(t).Issue(t, "one.internal")
	base, _, _ := proxySettingsFor(t, database(t, true))
	for _, c := range []struct{ cert, key, says string }{
		{pair.CertFile, "", "both"}, {"", pair.KeyFile, "both"}, {pair.CertFile, pair.CertFile, "WIREFENCE_ADMIN_TLS_KEY_FILE"}, {pair.CertFile + "x", pair.KeyFile, pair.CertFile + "x"},
	} {
		wirefence(t, append(base, "WIREFENCE_ADMIN_TLS_CERT_FILE="+c.cert, "WIREFENCE_ADMIN_TLS_KEY_FILE="+c.key), "proxy").expect(t, 2, "WIREFENCE_ADMIN_TLS", c.says)
	}
}

// That tokens travel in clear is said where they do.
func TestTokensInClearAreWarnedOf(t *testing.T) {
	t.Parallel()
	pair := authority.New(t).Issue(t, "one.internal")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("alice read Zmlyc3QtdG9rZW4tMQ\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	secured := []string{"WIREFENCE_ADMIN_TLS_CERT_FILE=" + pair.CertFile, "WIREFENCE_ADMIN_TLS_KEY_FILE=" + pair.KeyFile}
	for _, c := range []struct{ beyond, secured, warned bool }{{true, false, true}, {true, true, false}, {false, false, false}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			settings := []string{"WIREFENCE_ADMIN_TOKEN_FILE=" + file}
			if c.beyond {
				at, _ := everywhere(t)
				settings = append(settings, at...)
			}
			if c.secured {
				settings = append(settings, secured...)
			}
			p := startProxy(t, database(t, true), settings...)
			if warned := strings.Contains(p.stderr.String(), "tokens of /v1 are sent in clear"); warned != c.warned {
				t.Errorf("warned: %v\n%s", warned, p.stderr.String())
			}
		})
	}
}
