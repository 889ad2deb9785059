package witness

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/wirefence/wirefence/internal/address"
)

// openPatroni asks each server's own Patroni: another one's view of the cluster may be old.
func openPatroni(text string, servers []string) (*Witness, error) {
	u, err := address.Parse(text, "patroni", "8008", "bound")
	if err != nil {
		return nil, err
	}
	if len(u.Hosts) != len(servers) {
		return nil, fmt.Errorf("it names %d Patronis for the %d servers of the upstream: name one for each, in their order", len(u.Hosts), len(servers))
	}
	w := &Witness{}
	if w.Bound, err = bound(&u); err != nil {
		return nil, err
	}
	config, err := u.TLS()
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if config != nil {
		scheme = "https"
	}
	client := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: config},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	w.close = func() error { client.CloseIdleConnections(); return nil }
	w.leads = func(ctx context.Context, server int) (bool, error) {
		// Status 200 means that it runs as the primary, and its leader lock hasn't expired.
		status, err := ask(ctx, client, scheme+"://"+u.Hosts[server]+"/primary", u.User, u.Password)
		switch {
		case err != nil:
			return false, err
		case status == http.StatusOK:
			return true, nil
		case status == http.StatusServiceUnavailable:
			return false, nil
		}
		return false, fmt.Errorf("the Patroni at %s answers /primary with status %d", u.Hosts[server], status)
	}
	return w, nil
}

// mostAnswer is more than any answer has, in bytes.
const mostAnswer = 1 << 20

// ask returns the status of the answer to a GET.
func ask(ctx context.Context, client *http.Client, url, user, password string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	if user != "" {
		request.SetBasicAuth(user, password)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, mostAnswer)) // so that the connection serves again
	return answer.StatusCode, err
}
