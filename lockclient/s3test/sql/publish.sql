INSERT INTO public.documents (name, object) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET object = excluded.object
