package servers

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
)

// Monitor is a running Prometheus or Alertmanager.
type Monitor struct{ process }

// StartPrometheus starts a Prometheus with a configuration, in YAML, and returns when it
// answers queries.
func StartPrometheus(ctx context.Context, config string) (*Monitor, error) {
	return startMonitor(ctx, config, []string{"prometheus"}, "--storage.tsdb.path=")
}

// StartAlertmanager starts an Alertmanager that sends no notifications, and returns when its API
// answers.
func StartAlertmanager(ctx context.Context) (*Monitor, error) {
	const config = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"
	return startMonitor(ctx, config, []string{"prometheus-alertmanager", "alertmanager"}, "--cluster.listen-address=", "--storage.path=")
}

// startMonitor starts a server by one of its names. The last flag is for the path of its data.
func startMonitor(ctx context.Context, config string, names []string, flags ...string) (*Monitor, error) {
	path, err := lookUp(names...)
	if err != nil {
		return nil, err
	}
	m := &Monitor{}
	if m.process, err = newProcess(names[0]); err != nil {
		return nil, err
	}
	file := filepath.Join(m.dir, "config.yaml")
	if err = os.WriteFile(file, []byte(config), 0o600); err == nil {
		flags[len(flags)-1] += m.data()
		cmd := exec.Command(path, append(flags, "--config.file="+file, "--web.listen-address="+m.Addr())...)
		err = m.run(ctx, cmd, func(ctx context.Context) error { return answersOK(ctx, m.URL()+"/-/ready") })
	}
	return orClosed(m, err)
}

// URL is where the server's pages and its API are.
func (m *Monitor) URL() string { return "http://" + m.Addr() }
