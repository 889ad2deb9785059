package apiservertest

import "strconv"

// Cluster makes a Cluster of CloudNativePG, or gives it another status: which instance is its primary, which
// is to be, and the addresses of its pods. The operator was not at hand.
func (s *Server) Cluster(namespace, name, current, target string, addresses map[string]string) {
	instances := object{}
	for instance, ip := range addresses {
		instances[instance] = object{"isPrimary": instance == current, "timeLineID": 1, "ip": ip}
	}
	s.change(func() {
		s.version++
		s.clusters["/apis/postgresql.cnpg.io/v1/namespaces/"+namespace+"/clusters/"+name] = object{
			"kind": "Cluster", "apiVersion": "postgresql.cnpg.io/v1",
			"metadata": object{"name": name, "namespace": namespace, "resourceVersion": strconv.Itoa(s.version)},
			"spec":     object{"instances": len(addresses)},
			"status":   object{"currentPrimary": current, "targetPrimary": target, "instances": len(addresses), "instancesReportedState": instances},
		}
	})
}
