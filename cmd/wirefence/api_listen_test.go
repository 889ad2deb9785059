package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/internal/authority"
)

const applicationToken, operatorToken = "YXBwbGljYXRpb24tdG9rZW4", "b3BlcmF0b3ItdG9rZW4tMQ"

func apiTokens(t *testing.T) (setting string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	text := "billing lease " + applicationToken + "\nalice operate " + operatorToken + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "WIREFENCE_ADMIN_TOKEN_FILE=" + file
}

// Applications have a port of their own, whether operators have one or not.
func TestTheAPIListener(t *testing.T) {
	t.Parallel()
	for name, admin := range map[string][]string{"beside the admin listener": nil, "alone": {"WIREFENCE_ADMIN_LISTEN=off"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, socket := freeAddress(t), filepath.Join(t.TempDir(), "api.sock")
			settings := append(admin, apiTokens(t), fmt.Sprintf("WIREFENCE_API_LISTEN=%s, unix:%s", strings.Replace(at, "127.0.0.1", "0.0.0.0", 1), socket))
			p := startProxy(t, database(t, true), settings...)
			resource := "http://" + at + "/v1/resources/orders"
			status, granted := ask(t, "POST", resource+"/acquire", applicationToken, `{"holder":"worker-a"}`)
			if status != 200 {
				t.Fatalf("%d: %v", status, granted)
			}
			if status, seen := ask(t, "GET", resource, applicationToken, ""); status != 200 || seen["token"] != granted["token"] {
				t.Errorf("%d: %v", status, seen)
			}
			for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/metrics": 401, "/console/": 401, "/v1/resources": 401} {
				if status, body := get(t, "http://"+at+path); status != want {
					t.Errorf("%s: %d %s", path, status, body)
				}
			}
			if status, problem := ask(t, "POST", resource+"/revoke", operatorToken, `{}`); status != 403 || problem["type"] != "urn:wirefence:problem:admin-only" {
				t.Errorf("an operator revokes: %d %v", status, problem)
			}
			overSocket := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			}}}
			defer overSocket.CloseIdleConnections()
			response, err := overSocket.Get("http://wirefence/livez")
			if err != nil {
				t.Fatal(err)
			}
			if _ = response.Body.Close(); response.StatusCode != 200 {
				t.Errorf("over the socket: %s", response.Status)
			}
			p.signal(t, syscall.SIGTERM)
			<-p.exited
			if status := p.cmd.ProcessState.ExitCode(); status != 0 {
				t.Errorf("exit status %d:\n%s", status, p.stderr.String())
			}
			if _, err := os.Stat(socket); err == nil {
				t.Error("the socket's file is left")
			}
		})
	}
}

func TestTheAPIListenersSettings(t *testing.T) {
	t.Parallel()
	base, _, admin := proxySettingsFor(t, database(t, true))
	for _, c := range []struct {
		settings []string
		status   int
		says     string
	}{
		{[]string{"WIREFENCE_API_LISTEN=0.0.0.0:0"}, 2, "WIREFENCE_ADMIN_TOKEN_FILE"},
		{[]string{"WIREFENCE_API_LISTEN=127.0.0.1:0", "WIREFENCE_DATABASE_URL="}, 2, "WIREFENCE_API_LISTEN needs a lease store"},
		{[]string{"WIREFENCE_API_LISTEN=" + admin}, 1, "WIREFENCE_API_LISTEN"},
		{[]string{"WIREFENCE_API_LISTEN=nowhere"}, 2, "WIREFENCE_API_LISTEN"},
	} {
		wirefence(t, append(base, c.settings...), "proxy").expect(t, c.status, c.says)
	}
}

// The certificate of the admin listener is that of the API listener, too; a socket has none.
func TestTLSOnTheAPIListener(t *testing.T) {
	t.Parallel()
	issued := authority.New(t)
	pair, at, socket := issued.Issue(t, "one.internal", "127.0.0.1"), freeAddress(t), filepath.Join(t.TempDir(), "api.sock")
	startProxy(t, database(t, true), "WIREFENCE_ADMIN_TLS_CERT_FILE="+pair.CertFile, "WIREFENCE_ADMIN_TLS_KEY_FILE="+pair.KeyFile,
		"WIREFENCE_API_LISTEN="+at+",unix:"+socket)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: issued.Pool()}}}
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + at + "/v1/whoami")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(response.Body)
	if _ = response.Body.Close(); response.StatusCode != 200 {
		t.Errorf("%s: %s", response.Status, text)
	}
	if status, body := get(t, "http://"+at+"/livez"); status != http.StatusBadRequest {
		t.Errorf("without TLS: %d %s", status, body)
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /livez HTTP/1.0\r\n\r\n")
	if text, err := io.ReadAll(c); err != nil || !strings.Contains(string(text), "200 OK") {
		t.Errorf("over the socket: %s, %v", text, err)
	}
}
