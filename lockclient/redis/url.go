package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// connection is a connection string, taken apart. The parameters are left as
// they are for go-redis to read.
type connection struct {
	scheme, user string
	hosts        []string
	path         string
	query        url.Values
	serverName   string // that certificates must be for, where given
	reload       reload
}

// errNotURL does not show the string, which may contain a password that cannot be
// recognised.
var errNotURL = errors.New("not a URL; characters such as @ : / ? # % in a user's name or a password must be percent-encoded")

// errNegative is for a database that go-redis would take for 0.
var errNegative = errors.New("the number of the database is negative")

// openClient creates a client for a connection string, and returns the name of the server
// for errors.
func openClient(text string, anew reload) (client goredis.UniversalClient, address string, err error) {
	scheme, _, found := strings.Cut(text, "://")
	if !found {
		return nil, "", errNotURL
	}
	var open func(*connection) (goredis.UniversalClient, string, error)
	switch scheme {
	case "redis", "rediss", "unix":
		open = openSingle
	case "redis-sentinel", "rediss-sentinel":
		open = openSentinel
	case "redis-cluster", "rediss-cluster":
		open = openCluster
	default:
		return nil, "", errors.New("the scheme must be redis, redis-sentinel or redis-cluster, with rediss in place of redis for TLS, or unix")
	}
	c, err := parseConnection(text)
	if err != nil {
		return nil, "", err
	}
	for _, name := range []string{"read_only", "replica_only", "route_by_latency", "route_randomly", "use_disconnected_replicas"} {
		if c.query.Has(name) {
			return nil, "", fmt.Errorf("%s is not supported: leases are on masters only", name)
		}
	}
	c.reload = anew
	return open(c)
}

// parseConnection parses a connection string whose scheme is known. net/url accepts no
// list of hosts, so parseConnection reads the authority itself.
func parseConnection(text string) (*connection, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	user, hosts := "", authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, hosts = authority[:at+1], authority[at+1:]
	}
	if strings.ContainsAny(tail, "@#") {
		return nil, errNotURL
	}
	u, err := url.Parse("redis://" + user + "host" + tail)
	if err != nil {
		return nil, errNotURL
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errNotURL
	}
	c := &connection{scheme: strings.TrimSuffix(scheme, "-sentinel"), user: user, path: u.EscapedPath(), query: query}
	c.scheme = strings.TrimSuffix(c.scheme, "-cluster")
	c.hosts, c.serverName = strings.Split(hosts, ","), c.takeParameter("tls_server_name")
	if c.serverName != "" && c.scheme != "rediss" {
		return nil, errors.New("tls_server_name needs TLS: rediss in place of redis")
	}
	return c, nil
}

// addresses gives every host a port.
func (c *connection) addresses(port string) error {
	for i, host := range c.hosts {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
		u, err := url.Parse("redis://" + host)
		if err != nil || u.Hostname() == "" || !isPort(u.Port()) {
			return fmt.Errorf("host %d of %d is neither host nor host:port", i+1, len(c.hosts)) // not shown: it may be part of a password that is not encoded
		}
		c.hosts[i] = host
	}
	return nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// forGoRedis returns the string in the form of go-redis: the first host in its place, the
// others as parameters.
func (c *connection) forGoRedis() string {
	query := c.query
	if len(c.hosts) > 1 {
		query["addr"] = c.hosts[1:]
	}
	return c.scheme + "://" + c.user + c.hosts[0] + c.path + "?" + query.Encode()
}

// takeParameter removes a parameter and returns its value.
func (c *connection) takeParameter(name string) string {
	value := c.query.Get(name)
	c.query.Del(name)
	return value
}

// withoutURL removes the connection string, and so the password, from the errors of go-redis.
func withoutURL(err error) error {
	if parse := (*url.Error)(nil); errors.As(err, &parse) {
		return errNotURL
	}
	return err
}

func openSingle(c *connection) (goredis.UniversalClient, string, error) {
	if len(c.hosts) > 1 {
		return nil, "", errors.New("several hosts need redis-sentinel:// or redis-cluster://")
	}
	if c.query.Has("master_name") {
		return nil, "", errors.New("master_name is for redis-sentinel://")
	}
	if c.scheme != "unix" && c.hosts[0] != "" {
		if err := c.addresses("6379"); err != nil {
			return nil, "", err
		}
	}
	opts, err := goredis.ParseURL(c.forGoRedis())
	if err != nil {
		return nil, "", withoutURL(err)
	}
	if opts.DB < 0 {
		return nil, "", errNegative
	}
	opts.ContextTimeoutEnabled, opts.CredentialsProviderContext = true, c.reload.credentials()
	c.configureTLS(opts.TLSConfig)
	return goredis.NewClient(opts), opts.Addr, nil
}

// openSentinel takes the credentials before the hosts for those of Redis, as in the other
// forms; in the form of go-redis they are those of the Sentinels.
func openSentinel(c *connection) (goredis.UniversalClient, string, error) {
	if err := c.addresses("26379"); err != nil {
		return nil, "", err
	}
	user, password := c.takeSentinels()
	if c.query.Has("username") || c.query.Has("password") {
		return nil, "", errors.New("the credentials of Redis go before the hosts, those of Sentinel into sentinel_username and sentinel_password")
	}
	opts, err := goredis.ParseFailoverURL(c.forGoRedis())
	if err != nil {
		return nil, "", withoutURL(err)
	}
	if opts.DB < 0 {
		return nil, "", errNegative
	}
	if opts.MasterName == "" {
		return nil, "", errors.New("master_name is missing: the name of the master at the Sentinels")
	}
	opts.Username, opts.Password = opts.SentinelUsername, opts.SentinelPassword
	opts.SentinelUsername, opts.SentinelPassword = user, password
	if c.reload != nil {
		opts.SentinelUsername, opts.SentinelPassword, opts.OnConnect = "", "", c.reload.logInAtSentinel
	}
	opts.ContextTimeoutEnabled, opts.CredentialsProviderContext = true, c.reload.credentials()
	c.configureTLS(opts.TLSConfig)
	name := fmt.Sprintf("%s of Sentinels %s", opts.MasterName, strings.Join(opts.SentinelAddrs, ","))
	return goredis.NewFailoverClient(opts), name, nil
}

func openCluster(c *connection) (goredis.UniversalClient, string, error) {
	if err := c.addresses("6379"); err != nil {
		return nil, "", err
	}
	if path := strings.Trim(c.path, "/"); path != "" && path != "0" || c.query.Has("db") {
		return nil, "", errors.New("a Redis Cluster has database 0 only")
	}
	if c.query.Has("master_name") {
		return nil, "", errors.New("master_name is for redis-sentinel://")
	}
	skip := c.takeParameter("skip_verify") // go-redis reads it in the other forms only
	opts, err := goredis.ParseClusterURL(c.forGoRedis())
	if err != nil {
		return nil, "", withoutURL(err)
	}
	opts.ContextTimeoutEnabled, opts.CredentialsProviderContext = true, c.reload.credentials()
	c.configureTLS(opts.TLSConfig)
	if opts.TLSConfig != nil {
		if !slices.Contains([]string{"", "true", "false"}, skip) {
			return nil, "", errors.New("skip_verify must be true or false")
		}
		opts.TLSConfig.InsecureSkipVerify = skip == "true"
	} else if skip != "" {
		return nil, "", errors.New("skip_verify needs TLS: rediss-cluster://")
	}
	return goredis.NewClusterClient(opts), strings.Join(opts.Addrs, ","), nil
}

// configureTLS accepts from every server a certificate for the address by which it was reached,
// or for tls_server_name. go-redis would expect the name of the first host from all of
// them.
func (c *connection) configureTLS(config *tls.Config) {
	if config != nil {
		config.MinVersion, config.ServerName = tls.VersionTLS12, c.serverName
	}
}
