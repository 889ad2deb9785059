SELECT d.object FROM public.documents AS d WHERE d.name = $1
