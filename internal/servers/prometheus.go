package servers

import (
	"context"
	"os"
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
	if err = m.prepare(path); err == nil {
		flags[len(flags)-1] += m.data()
		m.command = append(append(m.command, flags...), "--config.file="+m.file("config.yaml"), "--web.listen-address="+m.Addr())
		m.ready = func(ctx context.Context) error { return answersOK(ctx, m.URL()+"/-/ready") }
		err = os.WriteFile(m.file("config.yaml"), []byte(config), 0o600)
	}
	if err == nil {
		err = m.Start(ctx)
	}
	return orClosed(m, err)
}

// URL is where the server's pages and its API are.
func (m *Monitor) URL() string { return "http://" + m.Addr() }
