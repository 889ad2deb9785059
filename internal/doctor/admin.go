package doctor

import (
	"context"
	"crypto/tls"
	"errors"
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
	return Ask(ctx, address, path, "")
}

// Ask is Probe with a token, "" for none. A token is sent to a loopback address only.
func Ask(ctx context.Context, address, path, token string) (status int, body string, err error) {
	if host, _, err := net.SplitHostPort(address); token != "" && (err != nil || !net.ParseIP(host).IsLoopback()) {
		return 0, "", errors.New("a token is sent to a loopback address only")
	}
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status, body, err = request(ctx, plain, "http://"+address+path, "")
	switch {
	case err == nil && status == http.StatusUnauthorized && token != "":
		return request(ctx, plain, "http://"+address+path, token)
	case err != nil || status != http.StatusBadRequest || !strings.Contains(body, "HTTP request to an HTTPS server"):
		return status, body, err
	}
	secured := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	return request(ctx, &http.Client{Transport: secured}, "https://"+address+path, token)
}

func request(ctx context.Context, client *http.Client, url, token string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxProbe))
	return resp.StatusCode, string(text), err
}
