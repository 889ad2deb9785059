package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/adopt/leaderelection"
	"github.com/wirefence/wirefence/internal/doctor"
)

// exitProblem is the status of a doctor that has found a problem. exitFailure says that a
// check could not be made.
const exitProblem = 3

type doctorSettings struct {
	StoreSettings
	SealSettings
	ResourceSettings
	Upstream       string        `env:"WIREFENCE_UPSTREAM" group:"Connections" type:"url" file:"yes" help:"the proxy's PostgreSQL servers; with them, the command also examines the proxy on this machine"`
	Listen         []string      `env:"WIREFENCE_LISTEN" group:"Connections" type:"address,..." help:"addresses of the proxy, of which the first is used; off for none (default 127.0.0.1:6433 if the upstream is set)"`
	Witness        string        `env:"WIREFENCE_WITNESS" group:"Fencing" type:"url" file:"yes" help:"the proxy's witness, which the command asks about the servers of the upstream"`
	ProxyURL       string        `env:"WIREFENCE_PROXY_URL" group:"Connections" file:"yes" help:"connection string of a session through the proxy; by default at ~WIREFENCE_LISTEN~ with the user, password and database of ~WIREFENCE_DATABASE_URL~"`
	AdminListen    string        `env:"WIREFENCE_ADMIN_LISTEN" group:"Connections" type:"address" help:"address of the proxy's probes; off for none (default 127.0.0.1:9433 if the upstream is set)"`
	MaxConnections int           `env:"WIREFENCE_MAX_CONNECTIONS" group:"Limits and timeouts" envDefault:"0" range:"0.." help:"the proxy's limit of clients, to compare with the server's; 0 compares nothing"`
	Lease          string        `env:"WIREFENCE_LEASE" group:"Leases" type:"resource" help:"the resource whose lease the proxy holds, or waits for: whether it can be granted here"`
	LeaseFrom      string        `env:"WIREFENCE_LEASE_FROM" group:"Leases" type:"lock,..." help:"the locks that the proxy's application takes by itself: whether the Leases of Kubernetes among them are sealed"`
	Kubernetes     string        `env:"WIREFENCE_KUBERNETES_URL" group:"Leases" type:"url" help:"the API server of these Leases"`
	TTL            time.Duration `env:"WIREFENCE_TTL" group:"Leases" envDefault:"15s" range:"1ms.." help:"the TTL of the leases, to compare with the time that a takeover may take"`
	Through        string        `env:"--through" type:"url" help:"connection string of an application, through a pooler for instance: which ways to carry a fence survive there"`
	Timeout        time.Duration `env:"--timeout" envDefault:"10s" range:"1ms.." help:"time that each check may take"`
	Strict         bool          `env:"--strict" help:"let warnings count as problems"`
}

func doctorCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "doctor",
		Short: "Examine whether the fence holds, and say how to fix it if not",
		Long: `Examines the database, and the lease store and the proxy if they are named: schema,
functions and rights, guards, sessions that delay takeovers, settings that endanger
writes or leases, and whether the proxy has fences checked. Each finding says what it
means and what to do. It changes nothing.

Exit status:

    0  all is well, warnings included unless --strict is given
    1  no problem, but a check could not be made: a right or an answer is missing
    2  wrong usage
    3  a problem, or with --strict a warning`,
		Example: "  wirefence doctor --database-url postgres://issuer@db/app\n  wirefence doctor --strict -o json\n  wirefence doctor --through postgres://app@pooler:6432/app",
		Args:    exactly(0, "no arguments"),
	}, func(c *cobra.Command, cfg doctorSettings, _ []string) error {
		return runDoctor(c.Context(), cfg, c.OutOrStdout())
	})
}

func runDoctor(ctx context.Context, cfg doctorSettings, w io.Writer) error {
	in, closeAll, err := cfg.input(ctx)
	if err != nil {
		return usageError{err}
	}
	defer closeAll()
	logRedisTo(nil)
	results := doctor.Run(ctx, in, cfg.Timeout)
	print := doctor.Print
	if cfg.inJSON() {
		print = doctor.PrintJSON
	}
	if err := print(w, results); err != nil {
		return err
	}
	switch worst := doctor.Worst(results); {
	case worst == doctor.Problem, cfg.Strict && doctor.Counts(results)[doctor.Warning.String()] > 0:
		return &exitStatus{status: exitProblem}
	case worst == doctor.Unchecked:
		return &exitStatus{status: exitFailure}
	}
	return nil
}

// input is what the settings name. It does not connect yet.
func (cfg doctorSettings) input(ctx context.Context) (in *doctor.Input, closeAll func(), err error) {
	if cfg.DatabaseURL == "" {
		return nil, nil, errNoDatabase
	}
	leases, err := openLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL, cfg.SealURLs)
	if err != nil {
		return nil, nil, err
	}
	in = &doctor.Input{Source: leases.counts, Sources: storeSources(), MaxConnections: cfg.MaxConnections, TTL: cfg.TTL, Lease: fence.Resource(cfg.Lease)}
	if named := cfg.namedStores(); len(named) > 0 {
		in.Store, in.StoreSetting = leases.store, named[0].setting
	}
	if in.Database, err = doctor.OpenPool(ctx, cfg.DatabaseURL); err != nil {
		leases.close()
		return nil, nil, fmt.Errorf("WIREFENCE_DATABASE_URL: %w", err)
	}
	closeAll = func() {
		in.Database.Close()
		for _, d := range in.Further {
			d.Pool.Close()
		}
		if in.Witness != nil {
			_ = in.Witness.Close()
		}
		leases.close()
	}
	if cfg.Through != "" {
		if in.Through, err = doctor.ParseSession(cfg.Through); err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("--through: %w", err)
		}
	}
	for i, d := range leases.databases[1:] {
		pool, err := doctor.OpenPool(ctx, cfg.SealURLs[i])
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("WIREFENCE_SEAL_URLS: %w", err)
		}
		in.Further = append(in.Further, doctor.FurtherDatabase{Name: d.name, Pool: pool})
	}
	if err := errors.Join(cfg.nameProxy(in), cfg.nameElections(in)); err != nil {
		closeAll()
		return nil, nil, err
	}
	return in, closeAll, nil
}

// nameProxy adds what the settings say of a proxy.
func (cfg doctorSettings) nameProxy(in *doctor.Input) (err error) {
	as := in.Database.Config().ConnConfig
	listen, admin := "", cfg.AdminListen
	if len(cfg.Listen) > 0 {
		listen = cfg.Listen[0]
	}
	if cfg.Upstream != "" {
		listen, admin = cmp.Or(listen, proxyDefault("Listen")), cmp.Or(admin, proxyDefault("AdminListen"))
		if in.Upstream, err = doctor.UpstreamSession(cfg.Upstream, as); err != nil {
			return fmt.Errorf("WIREFENCE_UPSTREAM: %w", err)
		}
	}
	if admin != "" && admin != "off" {
		if in.Admin, err = doctor.AdminAddress(admin); err != nil {
			return fmt.Errorf("WIREFENCE_ADMIN_LISTEN: %w", err)
		}
	}
	if in.Proxy, err = cfg.proxySession(listen, as); err != nil {
		return err
	}
	if w, servers, err := openWitness(cfg.Witness, cfg.Upstream); err != nil {
		return err
	} else if w != nil {
		in.Witness = &doctor.Witness{Leads: w.Leads, Close: w.Close, Servers: servers, Bound: w.Bound}
	}
	return nil
}

// nameElections adds the Leases of Kubernetes that the application is elected by.
func (cfg doctorSettings) nameElections(in *doctor.Input) error {
	locks, err := adopt.ParseFrom(cfg.LeaseFrom)
	if err != nil {
		return fmt.Errorf("WIREFENCE_LEASE_FROM: %w", err)
	}
	if locks = locks.Of(adopt.Kubernetes); len(locks) == 0 {
		return nil
	}
	client, err := openAPIServer(cfg.Kubernetes)
	if err != nil {
		return err
	}
	for _, lock := range locks {
		in.Adopted = append(in.Adopted, doctor.AdoptedLock{Name: lock.String(), Resource: lock.Resource,
			Look: func(ctx context.Context) (string, fence.Token, error) { return leaderelection.Look(ctx, client, lock) }})
	}
	return nil
}

func (cfg doctorSettings) proxySession(listen string, as *pgx.ConnConfig) (session *pgx.ConnConfig, err error) {
	switch {
	case cfg.ProxyURL != "":
		if session, err = doctor.ProxySession(cfg.ProxyURL); err != nil {
			return nil, fmt.Errorf("WIREFENCE_PROXY_URL: %w", err)
		}
	case listen != "" && listen != "off":
		if session, err = doctor.ListenSession(listen, as); err != nil {
			return nil, fmt.Errorf("WIREFENCE_LISTEN: %w", err)
		}
	}
	return session, nil
}

// proxyDefault is what the proxy takes where a field of its settings isn't set.
func proxyDefault(field string) string {
	for _, f := range fields[proxySettings]() {
		if f.Name == field {
			return f.Tag.Get("envDefault")
		}
	}
	panic("the proxy has no setting " + field)
}
