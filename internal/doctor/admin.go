package doctor

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
)

// AdminAddress returns the address of the probes of a proxy on this machine whose admin listener
// is at listen, which may be a wildcard address.
func AdminAddress(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(reachable(host), port), nil
}

// maxProbe bounds the answer of a probe, in bytes.
const maxProbe = 1 << 20

// Probe sends a GET request to a proxy's admin listener. It uses TLS if the listener has it, and
// doesn't verify the certificate, which is for another name than 127.0.0.1. It sends no
// secrets.
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
