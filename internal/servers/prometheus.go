package servers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Prometheus is a running Prometheus.
type Prometheus struct{ process }

// StartPrometheus starts a server with a configuration, in YAML, and returns when it
// answers queries.
func StartPrometheus(ctx context.Context, config string) (*Prometheus, error) {
	path, err := lookUp("prometheus", "prometheus")
	if err != nil {
		return nil, err
	}
	p := &Prometheus{}
	if p.process, err = newProcess("prometheus"); err != nil {
		return nil, err
	}
	file := filepath.Join(p.dir, "prometheus.yaml")
	if err = os.WriteFile(file, []byte(config), 0o600); err == nil {
		err = p.run(ctx, exec.Command(path, "--config.file="+file, "--storage.tsdb.path="+p.data(),
			"--web.listen-address="+p.Addr()), p.ready)
	}
	return orClosed(p, err)
}

// Alertmanager is a running Alertmanager.
type Alertmanager struct{ process }

// StartAlertmanager starts a server that sends no notifications, and returns when its API
// answers.
func StartAlertmanager(ctx context.Context) (*Alertmanager, error) {
	path, err := lookUp("alertmanager", "prometheus-alertmanager", "alertmanager")
	if err != nil {
		return nil, err
	}
	a := &Alertmanager{}
	if a.process, err = newProcess("alertmanager"); err != nil {
		return nil, err
	}
	file := filepath.Join(a.dir, "alertmanager.yaml")
	if err = os.WriteFile(file, []byte("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"), 0o600); err == nil {
		err = a.run(ctx, exec.Command(path, "--config.file="+file, "--storage.path="+a.data(),
			"--web.listen-address="+a.Addr(), "--cluster.listen-address="), a.ready)
	}
	return orClosed(a, err)
}

// lookUp finds a command, by the first of its names that is on the PATH.
func lookUp(what string, names ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no " + what + " found: run scripts/install-servers --test (Debian, Ubuntu), or put " + strings.Join(names, " or ") + " on the PATH")
}

// URL is where the server's pages and its API are.
func (p *Prometheus) URL() string   { return "http://" + p.Addr() }
func (a *Alertmanager) URL() string { return "http://" + a.Addr() }

func (p *Prometheus) ready(ctx context.Context) bool   { return answersReady(ctx, p.URL()) }
func (a *Alertmanager) ready(ctx context.Context) bool { return answersReady(ctx, a.URL()) }

func answersReady(ctx context.Context, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprint(url, "/-/ready"), nil)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
