package deploy

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// sources are the secrets that a volume is made of.
func sources(volume corev1.Volume) (all []*corev1.SecretProjection) {
	if volume.Projected != nil {
		for _, source := range volume.Projected.Sources {
			all = append(all, source.Secret)
		}
	}
	return all
}

// mountMisses holds each setting of a pod that names a file to the files that its container
// has, and each file to the secrets that there are.
func mountMisses(pod corev1.PodSpec, secrets map[string][]string) (misses []string) {
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		files := map[string]bool{}
		for _, mount := range container.VolumeMounts {
			i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
			if i < 0 {
				misses = append(misses, "there is no volume "+mount.Name)
				continue
			}
			for _, source := range sources(pod.Volumes[i]) {
				keys, there := secrets[source.Name]
				if !there {
					misses = append(misses, "there is no secret "+source.Name)
				}
				for _, item := range source.Items {
					if keys != nil && !slices.Contains(keys, item.Key) {
						misses = append(misses, "the secret "+source.Name+" has no "+item.Key)
					}
					files[path.Join(mount.MountPath, item.Path)] = true
				}
			}
		}
		for name, value := range environment(container) {
			if strings.HasSuffix(name, "_FILE") && !files[value] {
				misses = append(misses, name+" is "+value+", which is not there")
			}
			if _, file, has := strings.Cut(value, "sslrootcert="); has && !files[file] {
				misses = append(misses, name+" names "+file+", which is not there")
			}
		}
	}
	return misses
}
