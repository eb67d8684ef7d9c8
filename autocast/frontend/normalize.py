from tvm import relax
def normalize(mod):
    main = mod["main"]
    n = len(main.params) - int(main.attrs["num_input"])
    return mod, [True]*n
