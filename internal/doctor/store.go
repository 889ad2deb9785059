package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/redis"
)

const storeReachable = "store.reachable"

// storeChecks look at the lease store that is named.
func (in *Input) storeChecks() []Check {
	if in.Store == nil {
		return nil
	}
	all := []Check{{storeReachable, nil, checkStore}}
	switch in.Store.(type) {
	case *redis.Store:
		all = append(all, Check{"store.settings", []string{storeReachable}, checkRedis}, Check{"store.clock", []string{storeReachable}, checkRedisClock})
	case *etcd.Store:
		all = append(all, Check{"store.members", []string{storeReachable}, checkEtcd})
	}
	if _, counts := in.Store.(lockclient.Counter); counts {
		all = append(all, Check{"store.counters", []string{storeReachable, schemaVersion}, checkCounters})
	}
	return all
}

// nobodys is a resource that is looked at and never taken.
const nobodys fence.Resource = "wirefence-doctor"

func checkStore(ctx context.Context, in *Input) ([]Finding, error) {
	look := func() error {
		if l, ok := in.Store.(lockclient.Looker); ok {
			_, err := l.Look(ctx, nobodys)
			return err
		}
		return errors.New("the store can't be looked at")
	}
	err := look() // which also connects
	if err != nil {
		return []Finding{{
			Grade: Problem, Says: "the lease store can't be reached: " + err.Error(),
			Means:  "No lease is granted or renewed; present ones end at their deadlines. Writes with the current token are still accepted.",
			Remedy: []string{"see that it runs, and that " + in.StoreSetting + " names it with the right credentials"},
		}}, nil
	}
	trip, err := roundTrip(ctx, look)
	if err != nil {
		return nil, err
	}
	return fine("the lease store of %s answers in %v", in.StoreSetting, trip), nil
}

// mostCounters is how many counters are compared.
const mostCounters = 200

// checkCounters looks whether the store has forgotten what it counted.
func checkCounters(ctx context.Context, in *Input) ([]Finding, error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	counter := in.Store.(lockclient.Counter)
	compared, behind := 0, []string{}
	for _, r := range all {
		if r.Source != "" && r.Source != in.storeSource() || compared == mostCounters {
			continue
		}
		count, err := counter.Counted(ctx, r.Resource)
		if err != nil {
			return nil, err
		}
		if compared++; count < r.LastToken {
			behind = append(behind, fmt.Sprintf("%s (%d, recorded are %d)", r.Resource, count, r.LastToken))
		}
	}
	if len(behind) > 0 {
		named := behind[:min(len(behind), mostNamed)]
		return []Finding{{Grade: Note, Says: fmt.Sprintf("the store's counter is behind for %d of %d resources: %s", len(behind), compared, strings.Join(named, ", ")),
			Means: "It has forgotten tokens, or others counted on, as a revocation does. The next grant raises it; no token is granted twice where grants are sealed."}}, nil
	}
	return fine("of the store's counters none is behind the database; compared: %d", compared), nil
}

// storeSource is what tokens of the lease store are said to come from.
func (in *Input) storeSource() fence.Source {
	switch in.Store.(type) {
	case nil:
		return fence.SourcePostgres
	case *redis.Store:
		return fence.SourceRedis
	case *etcd.Store:
		return fence.SourceEtcd
	}
	return fence.SourceZooKeeper
}

// ownSources are the lease stores of this module: a resource of another source has grants of
// another lock service.
var ownSources = []fence.Source{fence.SourcePostgres, fence.SourceRedis, fence.SourceEtcd, fence.SourceZooKeeper}

// checkSources looks for resources whose grants came from another lease store than the one
// that is named here.
func checkSources(ctx context.Context, in *Input) (found []Finding, err error) {
	all, err := in.resources(ctx)
	if err != nil {
		return nil, err
	}
	here, elsewhere := in.storeSource(), []string{}
	for _, r := range all {
		switch {
		case r.Source == here || !slices.Contains(ownSources, r.Source):
		case r.Resource == in.Lease:
			found = append(found, Finding{Grade: Problem,
				Says:   fmt.Sprintf("the tokens of %s, of WIREFENCE_LEASE, come from %s, and the lease store here is %s", r.Resource, r.Source, here),
				Means:  "The proxy is refused each grant (WF003): it never leads.",
				Remedy: []string{fmt.Sprintf("wirefence resource set %s --source %s --reason 'another lease store', or name the former store in the settings", quoted(string(r.Resource)), here)}})
		default:
			elsewhere = append(elsewhere, fmt.Sprintf("%s (%s)", r.Resource, r.Source))
		}
	}
	if len(elsewhere) > 0 {
		found = append(found, Finding{Grade: Note,
			Says:   fmt.Sprintf("resources whose tokens come from another lease store than %s: %d: %s", here, len(elsewhere), strings.Join(elsewhere[:min(len(elsewhere), mostNamed)], ", ")),
			Means:  "Grants from this store are refused with WF003. That is as it should be if others use the other store.",
			Remedy: []string{fmt.Sprintf("wirefence resource set NAME --source %s --reason 'another lease store', if the store was changed", here)}})
	}
	return orFine(found, "no resource has its tokens from another lease store than %s", here), nil
}

// checkRedis looks at what costs leases.
func checkRedis(ctx context.Context, in *Input) (found []Finding, err error) {
	nodes, err := in.Store.(*redis.Store).Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var version string
	for _, n := range nodes {
		version = n.Info["redis_version"]
		found = append(found, redisFindings(n, in.Replicas)...)
		if n.Err != nil {
			err = redisError(n)
		}
	}
	if err != nil {
		return found, err
	}
	return orFine(found, "Redis %s evicts nothing and writes what it is told to disk; masters: %d", version, len(nodes)), nil
}

// redisError says which right the user of a connection lacks.
func redisError(n redis.Node) error {
	err := fmt.Errorf("look at Redis at %s: %w", n.Address, n.Err)
	if redis.IsForbidden(n.Err) {
		return &missingRight{err.Error(), []string{"ACL SETUSER the user of WIREFENCE_REDIS_URL +info +time +config|get"}}
	}
	return err
}

func redisFindings(n redis.Node, replicas int) (found []Finding) {
	if role := n.Info["role"]; role == "slave" {
		found = append(found, Finding{Grade: Problem, Says: "Redis at " + n.Address + " is a replica",
			Means: "It takes no writes: no lease is granted.", Remedy: []string{"name the master, or the Sentinels by redis-sentinel://, in WIREFENCE_REDIS_URL"}})
	}
	if connected, err := strconv.Atoi(n.Info["connected_slaves"]); err == nil && connected < replicas {
		found = append(found, Finding{Grade: Problem, Says: fmt.Sprintf("Redis at %s has %d replicas, grants wait for %d", n.Address, connected, replicas),
			Means: "No lease is granted or renewed until there are enough.", Remedy: []string{"bring replicas up, or set WIREFENCE_REDIS_WAIT_REPLICAS lower"}})
	}
	if policy := n.Config["maxmemory-policy"]; policy != "" && policy != "noeviction" {
		f := Finding{Grade: Warning, Says: fmt.Sprintf("Redis at %s has maxmemory-policy %s", n.Address, policy),
			Means:  "When its memory is full it forgets leases that are held, and counters. Tokens stay unique; two may believe that they hold one lease.",
			Remedy: []string{"redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf"}}
		if n.Config["maxmemory"] == "0" {
			f.Grade, f.Means = Note, "There is no maxmemory now. With one, it would forget leases that are held."
		}
		found = append(found, f)
	}
	if n.Config["appendonly"] == "no" {
		found = append(found, Finding{Grade: Note, Says: fmt.Sprintf("Redis at %s has appendonly no", n.Address),
			Means:  "A restart frees leases that are held. The tokens of the former holders are refused as soon as others are granted.",
			Remedy: []string{"redis-cli CONFIG SET appendonly yes, and in redis.conf, if that matters"}})
	}
	return found
}

func checkRedisClock(ctx context.Context, in *Input) (found []Finding, err error) {
	nodes, err := in.Store.(*redis.Store).Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Clock.IsZero() {
			return found, redisError(n)
		}
		found = append(found, clockFinding("the clock of Redis at "+n.Address, n.Clock, n.Asked, n.Answered))
	}
	return found, nil
}

func checkEtcd(ctx context.Context, in *Input) (found []Finding, err error) {
	members, err := in.Store.(*etcd.Store).Members(ctx)
	if err != nil {
		return nil, err
	}
	var version string
	for _, m := range members {
		switch {
		case m.Err != nil:
			found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("etcd at %s doesn't answer: %v", m.Endpoint, m.Err),
				Means: "Leases go on as long as a majority of the members does.", Remedy: []string{"bring it up, or take it out of WIREFENCE_ETCD_URL"}})
		case len(m.Alarms) > 0:
			found = append(found, Finding{Grade: Problem, Says: fmt.Sprintf("etcd at %s: %s", m.Endpoint, strings.Join(m.Alarms, "; ")),
				Means: "With the alarm NOSPACE it takes no writes: no lease is granted.", Remedy: []string{"etcdctl compact and defrag, then etcdctl alarm disarm"}})
		case !m.Leader:
			found = append(found, Finding{Grade: Problem, Says: fmt.Sprintf("etcd at %s knows no leader", m.Endpoint),
				Means: "Without a majority no lease is granted or renewed.", Remedy: []string{"bring up a majority of the members"}})
		default:
			version = m.Version
		}
	}
	return orFine(found, "etcd %s: all members that are named answer and know their leader: %d", version, len(members)), nil
}
