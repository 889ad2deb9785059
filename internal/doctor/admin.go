package doctor

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
)

// AdminAddress is where the probes of a proxy are reached that listens at an
// address, which may stand for all of a machine's.
func AdminAddress(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(reachable(host), port), nil
}

// maxProbe is how much is read of what a probe answers, in bytes.
const maxProbe = 1 << 20

// Probe asks the proxy whose admin listener is at an address. TLS is used where the
// listener has it, without looking at its certificate, which is for another name than
// that of this machine to itself: nothing secret is sent.
func Probe(ctx context.Context, address, path string) (status int, body string, err error) {
	status, body, err = request(ctx, http.DefaultClient, "http://"+address+path)
	if err != nil || status != http.StatusBadRequest || !strings.Contains(body, "HTTP request to an HTTPS server") {
		return status, body, err
	}
	secured := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	return request(ctx, &http.Client{Transport: secured}, "https://"+address+path)
}

func request(ctx context.Context, client *http.Client, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxProbe))
	return resp.StatusCode, string(text), err
}
