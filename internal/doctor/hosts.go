package doctor

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/timelines"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// standing is the answer of one of several hosts.
type standing struct {
	host string
	timelines.Place
	away error // why it can't be asked
	mute error // why it doesn't report its timeline
	here bool  // it is the server of WIREFENCE_DATABASE_URL
}

// checkHosts asks each host for its role and timeline, to find primaries that a promotion left
// behind.
func checkHosts(ctx context.Context, in *Input) ([]Finding, error) {
	hosts := hostsOf(in.Database.Config().ConnConfig, in.Upstream)
	if len(hosts) < 2 {
		return finding.Fine("one host is named, and none to compare it with"), nil
	}
	all := make([]standing, len(hosts))
	_, err := marked(ctx, in, func(mark int64) (bool, error) {
		var asking sync.WaitGroup
		for i, h := range hosts {
			asking.Go(func() { all[i] = askHost(ctx, h, mark) })
		}
		asking.Wait()
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return judgeHosts(all), nil
}

// marked runs do while the database holds an advisory lock with a random key, which only the
// same database of the same server shows.
func marked(ctx context.Context, in *Input, do func(mark int64) (bool, error)) (bool, error) {
	return read(ctx, in, func(tx pgx.Tx) (bool, error) {
		var number [8]byte
		_, _ = rand.Read(number[:]) // it never fails
		mark := int64(binary.BigEndian.Uint64(number[:]))
		if _, err := tx.Exec(ctx, takeMarkSQL, mark); err != nil {
			return false, err
		}
		return do(mark)
	})
}

// hostsOf returns a configuration for each host that the given ones name, in order.
func hostsOf(named ...*pgx.ConnConfig) (each []*pgx.ConnConfig) {
	seen := map[string]bool{}
	for _, cfg := range named {
		if cfg == nil {
			continue
		}
		only := func(host string, port uint16) {
			if seen[address(host, port)] {
				return
			}
			seen[address(host, port)] = true
			each = append(each, onlyHost(cfg, host, port))
		}
		only(cfg.Host, cfg.Port)
		for _, f := range cfg.Fallbacks {
			only(f.Host, f.Port)
		}
	}
	return each
}

func address(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// onlyHost narrows cfg to one host and drops target_session_attrs. It keeps that host's
// fallbacks with and without TLS.
func onlyHost(cfg *pgx.ConnConfig, host string, port uint16) *pgx.ConnConfig {
	one := cfg.Copy()
	one.ValidateConnect, one.Fallbacks = nil, nil
	if cfg.Host != host || cfg.Port != port {
		one.Host = ""
	}
	for _, f := range cfg.Fallbacks {
		switch {
		case f.Host != host || f.Port != port:
		case one.Host == "":
			one.Host, one.Port, one.TLSConfig = f.Host, f.Port, f.TLSConfig
		default:
			one.Fallbacks = append(one.Fallbacks, f)
		}
	}
	return one
}

func askHost(ctx context.Context, cfg *pgx.ConnConfig, mark int64) standing {
	s := standing{host: address(cfg.Host, cfg.Port)}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		s.away = err
		return s
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if s.away = conn.QueryRow(ctx, seeMarkSQL, mark).Scan(&s.here); s.away == nil {
		s.Place, s.mute = timelines.Ask(ctx, conn.PgConn())
	}
	return s
}

// judgeHosts compares the hosts with each other.
func judgeHosts(all []standing) (found []Finding) {
	var newest standing
	systems := map[string][]string{}
	for _, s := range all {
		switch {
		case s.away != nil:
			found = append(found, Finding{Grade: Note, Says: s.host + " can't be asked", Means: "If it still runs as a primary, that isn't noticed here. " + s.away.Error()})
			continue
		case s.mute != nil:
			found = append(found, Finding{Grade: Warning, Says: s.host + " is one of several hosts, and doesn't tell its timeline",
				Means:  "An old primary that still runs beside the new one isn't recognised: sessions stay there, and grants may be sealed there. " + s.mute.Error(),
				Remedy: []string{"let the cluster manager end old primaries, and name the address that it moves, alone"}})
			continue
		}
		systems[s.System] = append(systems[s.System], s.host)
		if s.Primary && (newest.host == "" || s.Timeline > newest.Timeline || s.Timeline == newest.Timeline && s.here) {
			newest = s
		}
	}
	if len(systems) > 1 {
		var each []string
		for _, hosts := range systems {
			each = append(each, strings.Join(hosts, ", "))
		}
		return append(found, Finding{Grade: Problem, Says: "the hosts belong to different clusters: " + strings.Join(each, "; "),
			Means: "Grants can be sealed in one and writes checked in another.", Remedy: []string{"name servers of one cluster in WIREFENCE_DATABASE_URL and WIREFENCE_UPSTREAM"}})
	}
	for _, s := range all {
		if s.away == nil && s.mute == nil && s.Primary {
			found = append(found, judgePrimaryHost(s, newest)...)
		}
	}
	return finding.OrFine(found, "of %d hosts, all on one timeline, no more than one is a primary", len(all))
}

// judgePrimaryHost judges a primary beside the one on the newest timeline.
func judgePrimaryHost(s, newest standing) []Finding {
	f := Finding{Grade: Problem, Means: "The other server never gets what is committed there, and former holders' tokens count there. " +
		"A proxy that knows both leaves the lower timeline; of two on the same it can't tell.",
		Remedy: []string{"end the server at " + s.host + ", or make it a standby again by pg_rewind"}}
	switch {
	case s.Timeline < newest.Timeline:
		f.Says = fmt.Sprintf("%s is a primary on timeline %d, left behind by that on timeline %d at %s", s.host, s.Timeline, newest.Timeline, newest.host)
	case s.host != newest.host && newest.here && !s.here:
		f.Says = fmt.Sprintf("%s and %s are two primaries on timeline %d", s.host, newest.host, s.Timeline)
	default:
		return nil
	}
	return []Finding{f}
}
