package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
)

// Cluster is what a Cluster of postgresql.cnpg.io/v1 says of its primary.
type Cluster struct {
	Kind   string        `json:"kind"`
	Status ClusterStatus `json:"status"`
}

// ClusterStatus is what CloudNativePG's operator and its instances write. Ahead of a failover or a
// switchover the operator changes TargetPrimary, and an instance writes CurrentPrimary behind its promotion.
type ClusterStatus struct {
	CurrentPrimary string              `json:"currentPrimary"`
	TargetPrimary  string              `json:"targetPrimary"`
	Instances      map[string]Instance `json:"instancesReportedState"`
}

// Instance is a pod of a Cluster.
type Instance struct {
	IP string `json:"ip"`
}

// GetCluster reads a Cluster.
func (c *Client) GetCluster(ctx context.Context, namespace, name string) (cluster Cluster, err error) {
	body, err := c.read(ctx, "/apis/postgresql.cnpg.io/v1/namespaces/"+url.PathEscape(namespace)+"/clusters/"+url.PathEscape(name))
	if err != nil {
		return cluster, err
	}
	if err := json.Unmarshal(body, &cluster); err != nil || cluster.Kind != "Cluster" {
		return cluster, errors.New("the API server's answer is no Cluster of CloudNativePG")
	}
	return cluster, nil
}

// Primary returns the address of the primary's pod, the zero address while another instance is to
// become the primary, or none is yet.
func (c *Cluster) Primary() (netip.Addr, error) {
	s := &c.Status
	if s.CurrentPrimary == "" || s.TargetPrimary != s.CurrentPrimary {
		return netip.Addr{}, nil
	}
	ip, err := netip.ParseAddr(s.Instances[s.CurrentPrimary].IP)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the Cluster's status has no address of its primary %s", s.CurrentPrimary)
	}
	return ip, nil
}
