package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// ZooKeeper is a running ZooKeeper server, alone or a member of an ensemble. Its
// data outlives Stop and Kill.
type ZooKeeper struct {
	process
	peer, election int // ports for the other members
}

// ZooKeeperTick is the tickTime of the servers that are started here.
const ZooKeeperTick = 100 * time.Millisecond

var zookeeperJars = []string{
	"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "netty-common", "netty-buffer", "netty-transport", "netty-resolver", "netty-codec",
	"netty-handler", "netty-transport-native-epoll", "netty-transport-native-unix-common", "snappy-java", "metrics-core", "commons-io", "commons-cli",
}

// StartZooKeeper starts a server on a free loopback port. Settings are lines of
// zoo.cfg. It returns when the server answers, which takes a Java machine a
// second or two: share it among tests.
func StartZooKeeper(ctx context.Context, settings ...string) (*ZooKeeper, error) {
	members, err := StartZooKeeperEnsemble(ctx, 1, settings...)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// StartZooKeeperEnsemble starts an ensemble of n members and returns when all of
// them answer.
func StartZooKeeperEnsemble(ctx context.Context, n int, settings ...string) ([]*ZooKeeper, error) {
	jars := make([]string, len(zookeeperJars))
	for i, name := range zookeeperJars {
		jars[i] = "/usr/share/java/" + name + ".jar" // Debian's libzookeeper-java and what it depends on
	}
	if _, err := os.Stat(jars[0]); err != nil {
		return nil, errors.New("no ZooKeeper found: run scripts/install-servers --test (Debian, Ubuntu), which installs libzookeeper-java")
	}
	common := []string{
		"clientPortAddress=127.0.0.1", fmt.Sprint("tickTime=", ZooKeeperTick.Milliseconds()), "minSessionTimeout=200", "maxSessionTimeout=120000",
		"maxClientCnxns=0", "admin.enableServer=false", "4lw.commands.whitelist=srvr", "preAllocSize=1024", "forceSync=no",
	}
	if n > 1 {
		common = append(common, "initLimit=100", "syncLimit=50")
	}
	var members []*ZooKeeper
	var failed error
	for i := range n {
		z := &ZooKeeper{}
		failed = errors.Join(failed, z.prepare("java", &z.peer, &z.election))
		members = append(members, z)
		if n > 1 {
			common = append(common, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, z.peer, z.election))
		}
	}
	for i, z := range members {
		if failed != nil {
			break
		}
		z.command = append(z.command, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.jmx.log4j.disable=true", "-Djava.net.preferIPv4Stack=true",
			"-cp", strings.Join(jars, ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", z.file("zoo.cfg"))
		z.ready = func(ctx context.Context) error {
			if z.Mode(ctx) == "" {
				return errors.New("it doesn't serve")
			}
			return nil
		}
		config := slices.Concat([]string{"dataDir=" + z.data(), fmt.Sprint("clientPort=", z.Port)}, common, settings)
		failed = cmp.Or(os.Mkdir(z.data(), 0o700), os.WriteFile(z.file("data/myid"), fmt.Append(nil, i+1), 0o600),
			os.WriteFile(z.file("zoo.cfg"), []byte(strings.Join(config, "\n")+"\n"), 0o600))
	}
	return startTogether(ctx, members, failed)
}

// Mode asks the server for its present mode: standalone, leader or follower; "" if it
// doesn't serve.
func (z *ZooKeeper) Mode(ctx context.Context) string {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", z.Addr())
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return ""
	}
	state, err := io.ReadAll(conn)
	_, mode, found := strings.Cut(string(state), "Mode: ")
	if err != nil || !found {
		return ""
	}
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}

// URL is the connection string of the server, as a lease store.
func (z *ZooKeeper) URL() string {
	return fmt.Sprintf("zookeeper://%s?tick=%v", z.Addr(), ZooKeeperTick)
}
